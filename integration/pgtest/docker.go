package pgtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

const (
	// defaultMajor is the version of the image where none is asked for.
	defaultMajor = 17

	// Deadlines of calls to the Docker engine.
	callTimeout = time.Minute
)

// pgPort is the port inside the container.
const pgPort = "5432/tcp"

// docker is a throw-away container.
type docker struct {
	client    *testcontainers.DockerClient
	container *testcontainers.DockerContainer
	image     string
	address   string // host:port
	auth      role
	guard     *guard // nil where testcontainers' reaper does its work
}

// openDocker starts a container. Its port on the host is fixed, so that the
// address outlives a restart.
func openDocker(ctx context.Context, opts Options) (engine, error) {
	log.SetDefault(log.NewNoopLogger()) // one line says what is used; it is ours
	command, err := exec.LookPath("docker")
	guarded := err == nil
	if guarded || opts.Keep {
		// The guard is quicker than testcontainers' reaper, needs no image and knows exceptions.
		if err := os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true"); err != nil {
			return nil, err
		}
	}
	api, err := dockerClient(ctx)
	if err != nil {
		return nil, err
	}
	d := &docker{client: api, auth: role{Name: "postgres", password: randomHex(16)}}
	d.image = d.chooseImage(ctx, opts)
	if !d.haveImage(ctx, d.image) {
		fmt.Fprintf(opts.Log, "PostgreSQL: pulling the image %s\n", d.image)
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	if err := d.run(ctx, port, opts.settings()); err != nil {
		return nil, errors.Join(fmt.Errorf("run a container of %s: %w", d.image, err), discard(d))
	}
	if guarded {
		if d.guard, err = d.startGuard(command); err != nil {
			return nil, errors.Join(err, discard(d))
		}
	}
	return d, nil
}

func dockerClient(ctx context.Context) (*testcontainers.DockerClient, error) {
	ctx, cancel := context.WithTimeout(ctx, Scaled(callTimeout))
	defer cancel()
	api, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return nil, fmt.Errorf("reach the Docker engine: %w", err)
	}
	return api, nil
}

// chooseImage takes the image that the environment names, else a local one
// that integration/images/build made, else the official one.
func (d *docker) chooseImage(ctx context.Context, opts Options) string {
	if image := os.Getenv("FAIRCLAIM_PG_IMAGE"); image != "" {
		return image
	}
	tag := strconv.Itoa(cmp.Or(opts.Major, defaultMajor))
	if local := "fairclaim-postgres:" + tag; d.haveImage(ctx, local) {
		return local
	}
	return "postgres:" + tag
}

func (d *docker) haveImage(ctx context.Context, image string) bool {
	ctx, cancel := context.WithTimeout(ctx, Scaled(callTimeout))
	defer cancel()
	_, err := d.client.ImageInspect(ctx, image)
	return err == nil
}

func (d *docker) run(ctx context.Context, port int, settings map[string]string) error {
	cmd := []string{"postgres"}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		cmd = append(cmd, "-c", name+"="+settings[name])
	}
	bind, host := d.hostAddress()
	var err error
	d.container, err = testcontainers.Run(ctx, d.image,
		testcontainers.WithCmd(cmd...),
		testcontainers.WithEnv(map[string]string{"POSTGRES_PASSWORD": d.auth.password}),
		testcontainers.WithExposedPorts(pgPort),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) {
			h.ShmSize = 256 << 20 // bytes
			h.PortBindings = network.PortMap{
				network.MustParsePort(pgPort): {{HostIP: bind, HostPort: strconv.Itoa(port)}},
			}
		}))
	d.address = net.JoinHostPort(host, strconv.Itoa(port))
	return err
}

// hostAddress returns where the engine shall listen and how that is reached: on
// the loopback address of this machine, unless the engine is said to be elsewhere.
// What testcontainers makes of it is no help: wherever there is a /.dockerenv it
// takes the default gateway for the engine.
func (d *docker) hostAddress() (bind netip.Addr, host string) {
	if host := os.Getenv("TESTCONTAINERS_HOST_OVERRIDE"); host != "" {
		return netip.IPv4Unspecified(), host
	}
	if u, err := url.Parse(d.client.DaemonHost()); err == nil && u.Hostname() != "" {
		return netip.IPv4Unspecified(), u.Hostname()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1}), "127.0.0.1"
}

func (d *docker) dsn() string { return superuserDSN(d.auth, d.address) }

func (d *docker) origin() string { return "in a container of " + d.image }

func (d *docker) failed(ctx context.Context) error {
	running, err := d.running(ctx)
	if err != nil || running {
		return err
	}
	return errors.New("the container ended" + d.logTail(ctx))
}

func (d *docker) running(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, Scaled(callTimeout))
	defer cancel()
	state, err := d.container.State(ctx)
	if err != nil {
		return false, fmt.Errorf("inspect the container: %w", err)
	}
	return state.Running, nil
}

// logTail is the end of the container's output, on lines of its own.
func (d *docker) logTail(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, Scaled(callTimeout))
	defer cancel()
	logs, err := d.container.Logs(ctx)
	if err != nil {
		return ""
	}
	defer logs.Close()
	text, _ := io.ReadAll(logs) // as much as there is
	return tail(text)
}

func (d *docker) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Scaled(callTimeout))
	defer cancel()
	_, err := d.client.ContainerStart(ctx, d.container.ID, client.ContainerStartOptions{})
	return err
}

func (d *docker) kill(ctx context.Context) error      { return d.signal(ctx, "SIGKILL") }
func (d *docker) interrupt(ctx context.Context) error { return d.signal(ctx, "SIGINT") }

// signal sends a signal that ends PostgreSQL, which is the container's first
// process, and waits for its end. A container that has ended is left alone.
func (d *docker) signal(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, Scaled(callTimeout))
	defer cancel()
	if running, err := d.running(ctx); err != nil || !running {
		return err
	}
	ended := d.client.ContainerWait(ctx, d.container.ID, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	if _, err := d.client.ContainerKill(ctx, d.container.ID, client.ContainerKillOptions{Signal: name}); err != nil {
		return err
	}
	select {
	case <-ended.Result:
		return nil
	case err := <-ended.Error:
		return err
	}
}

func (d *docker) keep(context.Context) error {
	if d.guard == nil {
		return nil
	}
	err := d.guard.dismiss()
	d.guard = nil
	return err
}

func (d *docker) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Scaled(callTimeout))
	defer cancel()
	err := d.container.Terminate(ctx, testcontainers.StopTimeout(0))
	if d.guard != nil {
		err = errors.Join(err, d.guard.close())
	}
	if err != nil {
		return fmt.Errorf("remove the container: %w", err)
	}
	return nil
}

func (d *docker) removeCommand() string { return "docker rm -f -v " + d.container.ID[:12] }

// guard is a process that waits for the end of this one and then removes a container.
type guard struct {
	cmd   *exec.Cmd
	stdin io.Closer // closed by the kernel at the latest
}

// startGuard starts the guard of the container, which uses the docker command.
func (d *docker) startGuard(command string) (*guard, error) {
	const script = `cat >/dev/null; "$1" -H "$2" rm -f -v "$3" >/dev/null 2>&1; true`
	cmd := exec.Command("sh", "-c", script, "guard", command, d.client.DaemonHost(), d.container.ID)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("guard the container: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("guard the container: %w", err)
	}
	return &guard{cmd: cmd, stdin: stdin}, nil
}

// close has the guard do its work.
func (g *guard) close() error { return errors.Join(g.stdin.Close(), g.cmd.Wait()) }

// dismiss ends the guard without it.
func (g *guard) dismiss() error {
	if err := g.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("dismiss the container's guard: %w", err)
	}
	g.cmd.Wait() // it was killed: no news
	return nil
}
