// Kubebox is one static binary with the Kubernetes programs that tests run: linked together they share nearly all of their code,
// so that one build and one file stand for eight. The name it is called by, or its first argument, says which one it is.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	_ "time/tzdata" // CronJobs name time zones, and a node image may have no zone files

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics on /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs maps a name to what runs it and returns its exit code. Commands are made only when they run: making one registers flags.
var programs = map[string]func() int{
	"etcd":                    runEtcd,
	"kube-apiserver":          command(apiserver.NewAPIServerCommand),
	"kube-controller-manager": command(controllermanager.NewControllerManagerCommand),
	"kube-proxy":              command(proxy.NewProxyCommand),
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubeadm":                 runKubeadm,
	"kubectl":                 command(kubectl.NewDefaultKubectlCommand),
	"kubelet":                 func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
	"pause":                   runPause,
}

func command(make func() *cobra.Command) func() int {
	return func() int { return cli.Run(make()) }
}

func runEtcd() int {
	etcdmain.Main(os.Args)
	return 0
}

func runKubeadm() int {
	if err := kubeadm.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// runPause holds a pod's namespaces open, as the first process of each.
func runPause() int {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	<-ended
	return 0
}

// pick finds the program and drops the argument that named it, so that programs see their own name as os.Args[0].
func pick(arguments []string) (func() int, []string) {
	for skip := range min(2, len(arguments)) {
		if run, known := programs[filepath.Base(arguments[skip])]; known {
			return run, arguments[skip:]
		}
	}
	return nil, arguments
}

func main() {
	run, arguments := pick(os.Args)
	if run == nil {
		names := slices.Sorted(maps.Keys(programs))
		fmt.Fprintf(os.Stderr, "usage: kubebox PROGRAM [ARGUMENT ...], or a link named PROGRAM: %s\n", strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Args = arguments
	os.Exit(run())
}
