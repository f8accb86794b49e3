// Checks metrics on stdin as `promtool check metrics` does, with the package that it uses.
//
//	promlint <METRICS
//
// Prints a line for each fault. The exit status is 3 if there are any, and 1 if there are no metrics.
package main

import (
	"fmt"
	"os"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func main() {
	problems, err := promlint.New(os.Stdin).Lint()
	if err != nil {
		fmt.Println("no metrics:", err)
		os.Exit(1)
	}
	for _, problem := range problems {
		fmt.Printf("%s: %s\n", problem.Metric, problem.Text)
	}
	if len(problems) > 0 {
		os.Exit(3)
	}
}
