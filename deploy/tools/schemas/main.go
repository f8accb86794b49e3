// Writes JSON schemas for kubeconform, one for each kind, from the OpenAPI document of Kubernetes and from CRDs.
//
//	schemas OUT SWAGGER.json CRD.yaml...
//
// They are strict: a field that the API does not have is a fault.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

type object = map[string]any

func main() {
	log.SetFlags(0)
	if len(os.Args) < 3 {
		log.Fatal("schemas OUT SWAGGER.json CRD.yaml...")
	}
	out := os.Args[1]
	if err := os.MkdirAll(out, 0o777); err != nil {
		log.Fatal(err)
	}
	count := ofSwagger(out, os.Args[2])
	for _, path := range os.Args[3:] {
		count += ofCRD(out, path)
	}
	fmt.Printf("%d schemas\n", count)
}

func read(path string) object {
	text, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	var value object
	if err := yaml.Unmarshal(text, &value); err != nil {
		log.Fatalf("%s: %v", path, err)
	}
	return value
}

// Writes the schema of a kind under the name that kubeconform makes of it: {{.ResourceKind}}{{.KindSuffix}}.json.
func write(out, group, version, kind string, schema object) {
	name := strings.ToLower(kind)
	if group != "" {
		name += "-" + strings.SplitN(group, ".", 2)[0]
	}
	text, err := json.Marshal(schema)
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(out, name+"-"+version+".json"), text, 0o666); err != nil {
		log.Fatal(err)
	}
}

func ofSwagger(out, path string) int {
	definitions := read(path)["definitions"].(object)
	// Numbers are written for both, as in `port: 80` and `cpu: 1`.
	for _, either := range []string{
		"io.k8s.apimachinery.pkg.util.intstr.IntOrString",
		"io.k8s.apimachinery.pkg.api.resource.Quantity",
	} {
		definitions[either] = object{"type": []any{"string", "number"}}
	}
	for _, definition := range definitions {
		forbidOthers(definition)
	}
	count := 0
	for name, definition := range definitions {
		kinds, _ := definition.(object)["x-kubernetes-group-version-kind"].([]any)
		if len(kinds) != 1 {
			continue
		}
		kind := kinds[0].(object)
		used := object{}
		reach(name, definitions, used)
		schema := object{"$ref": "#/definitions/" + name, "definitions": used}
		write(out, kind["group"].(string), kind["version"].(string), kind["kind"].(string), schema)
		count++
	}
	return count
}

// Adds a definition and those that it refers to.
func reach(name string, all, used object) {
	if _, known := used[name]; known {
		return
	}
	used[name] = all[name]
	each(all[name], func(inner object) {
		if reference, is := inner["$ref"].(string); is {
			reach(strings.TrimPrefix(reference, "#/definitions/"), all, used)
		}
	})
}

func ofCRD(out, path string) int {
	spec := read(path)["spec"].(object)
	count := 0
	for _, version := range spec["versions"].([]any) {
		version := version.(object)
		schema := version["schema"].(object)["openAPIV3Schema"].(object)
		forbidOthers(schema)
		kind := spec["names"].(object)["kind"].(string)
		write(out, spec["group"].(string), version["name"].(string), kind, schema)
		count++
	}
	return count
}

// Forbids all fields that an object does not declare, unless it is free by declaration.
func forbidOthers(schema any) {
	each(schema, func(inner object) {
		_, open := inner["additionalProperties"]
		free, _ := inner["x-kubernetes-preserve-unknown-fields"].(bool)
		properties, has := inner["properties"].(object)
		_, isSchema := inner["type"].(string)
		if has && isSchema && len(properties) > 0 && !open && !free {
			inner["additionalProperties"] = false
		}
	})
}

// Calls a function for each object within a value.
func each(value any, call func(object)) {
	switch value := value.(type) {
	case object:
		call(value)
		for _, inner := range value {
			each(inner, call)
		}
	case []any:
		for _, inner := range value {
			each(inner, call)
		}
	}
}
