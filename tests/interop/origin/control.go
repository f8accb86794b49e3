package main

import (
	"io"
	"net/http"
)

// newControl is what the tests drive the origin with.
func newControl(store store, recorder *recorder, gate *gate) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /resource", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		part, unknown := storeOf(store, r.URL.Query().Get("node"))
		switch {
		case err != nil:
		case unknown != nil:
			err = unknown
		default:
			err = put(part, body)
		}
		answer(w, err)
	})
	mux.HandleFunc("DELETE /resource", func(w http.ResponseWriter, r *http.Request) {
		answer(w, store.remove(r.FormValue("type"), r.FormValue("name")))
	})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		ever, now := gate.counts()
		body, err := recorder.report(ever, now)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("content-type", "application/json")
		_, _ = w.Write(body)
	})
	mux.HandleFunc("POST /close", func(w http.ResponseWriter, _ *http.Request) {
		gate.dropAll()
		answer(w, nil)
	})
	mux.HandleFunc("POST /pause", func(w http.ResponseWriter, _ *http.Request) {
		gate.pause()
		answer(w, nil)
	})
	mux.HandleFunc("POST /resume", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, gate.resume())
	})
	return mux
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
