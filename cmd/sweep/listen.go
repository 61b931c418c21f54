package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/monitor"
	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink"
	"github.com/fairclaim/fairclaim/driver/node"
)

// watcher listens at the address of --listen, and shows there how the node is.
type watcher struct {
	address string // empty: nothing listens
	node    string
	survey  node.SurveyConfig
	server  *monitor.Server
}

// watch returns what makes the observer of a node with these sinks, or nil where nothing listens.
func (w *watcher) watch(ctx context.Context, a *app) func(*sink.Routes) (node.Observer, error) {
	if w.address == "" {
		return nil
	}
	return func(routes *sink.Routes) (node.Observer, error) {
		info, err := readVersion()
		if err != nil {
			return nil, err
		}
		listener, err := monitor.Listen(ctx, w.address)
		if err != nil {
			return nil, withHint(fmt.Errorf("--listen %s: %w", w.address, err),
				"Another process may use the port: give another one, or port 0 for any that is free.")
		}
		byQueue := make(map[string]string, len(routes.ByQueue))
		for taskQueue, s := range routes.ByQueue {
			byQueue[taskQueue] = sinkName(s)
		}
		m := monitor.New(monitor.Options{
			Node: w.node, Sink: sinkName(routes.Default), Routes: byQueue,
			Version: info.Version, Revision: info.Revision, Schema: strconv.FormatUint(uint64(info.Schema), 10), GoVersion: info.Go,
			SurveyEvery: w.survey.Every, Namespaces: w.survey.Namespaces > 0 || len(w.survey.Names) > 0,
		})
		w.server = monitor.Serve(listener, m)
		url := fmt.Sprintf("http://%s/metrics", listener.Addr())
		if monitor.Local(listener) {
			a.log.Info("serving metrics", "url", url)
		} else {
			a.log.Warn("serving metrics to other machines too: whoever reaches this address can read them", "url", url)
		}
		return m, nil
	}
}

// sinkName is the name of a sink as logs have it, without what may be a secret.
func sinkName(s node.Sink) string {
	if named, ok := s.(sink.Sink); ok {
		return named.String()
	}
	return "unnamed"
}

// close ends what watch has begun.
func (w *watcher) close() {
	if w.server != nil {
		w.server.Close()
	}
}
