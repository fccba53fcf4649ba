package services

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// rabbitNode has the files of one broker.
type rabbitNode struct {
	install                           rabbitInstall
	dir                               string
	owner                             account
	amqp, management, dist, epmd, tls int
	certificates                      *Certificates // nil without TLS
	plugins                           string        // a directory in addition to the broker's own, or ""
}

// configure writes the node's files. Nodes with the same cookie can form a cluster.
func (n *rabbitNode) configure(cfg RabbitConfig, cookie string) error {
	conf := []string{
		"listeners.tcp.1 = " + loopback(n.amqp),
		"management.tcp.ip = 127.0.0.1",
		"management.tcp.port = " + strconv.Itoa(n.management),
		"collect_statistics_interval = 1000", // 5 s by default: tests read counts
		"log.console = true",
		"log.console.level = warning",
		"log.file = false",
		"vm_memory_high_watermark.absolute = 1GB",
		"disk_free_limit.absolute = 50MB",
	}
	if cfg.ConsumerTimeout > 0 {
		conf = append(conf, fmt.Sprintf("consumer_timeout = %d", cfg.ConsumerTimeout.Milliseconds()))
	}
	if cfg.TLS {
		certificates, err := NewCertificates(n.dir)
		if err != nil {
			return err
		}
		n.certificates = certificates
		if err := n.owner.own(certificates.CA, certificates.ServerCert, certificates.ServerKey); err != nil {
			return err
		}
		conf = append(conf,
			"listeners.ssl.1 = "+loopback(n.tls),
			"ssl_options.cacertfile = "+certificates.CA,
			"ssl_options.certfile = "+certificates.ServerCert,
			"ssl_options.keyfile = "+certificates.ServerKey)
	}
	var advanced []string
	if cfg.DeadLetterConfirmTimeout > 0 {
		advanced = append(advanced, fmt.Sprintf("{rabbit, [{dead_letter_worker_publisher_confirm_timeout, %d}]}",
			cfg.DeadLetterConfirmTimeout.Milliseconds()))
	}
	if cfg.Unsynced {
		advanced = append(advanced, "{ra, [{wal_write_strategy, sync_after_notify}]}")
	}
	plugins := append([]string{"rabbitmq_management"}, cfg.Plugins...)
	files := map[string]string{
		"rabbitmq.conf":   strings.Join(conf, "\n") + "\n" + cfg.Conf + "\n",
		"advanced.config": "[" + strings.Join(advanced, ", ") + "].\n",
		"enabled_plugins": "[" + strings.Join(plugins, ",") + "].\n",
	}
	for name, text := range files {
		path := filepath.Join(n.dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
		if err := n.owner.own(path); err != nil {
			return err
		}
	}
	for _, name := range []string{"mnesia", "log", "home"} {
		path := filepath.Join(n.dir, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
		if err := n.owner.own(path); err != nil {
			return err
		}
	}
	secret := filepath.Join(n.dir, "home", ".erlang.cookie")
	if err := os.WriteFile(secret, []byte(cookie), 0o400); err != nil {
		return err
	}
	return n.owner.own(secret)
}

func (n rabbitNode) name() string { return fmt.Sprintf("redrive%d@localhost", n.amqp) }

func (n rabbitNode) startEPMD(ctx context.Context) (*process, error) {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), n.install.epmd, "-address", "127.0.0.1", "-port",
		strconv.Itoa(n.epmd))
	cmd.Dir = n.dir
	cmd.Env = []string{"HOME=" + filepath.Join(n.dir, "home")}
	n.owner.prepare(cmd, syscall.SIGKILL)
	return startProcess(cmd, filepath.Join(n.dir, "epmd.txt"))
}

func (n rabbitNode) command(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(n.install.bin, "rabbitmq-server"))
	n.prepare(cmd)
	return cmd
}

// prepare sets the node's environment and account for a command of RabbitMQ.
func (n rabbitNode) prepare(cmd *exec.Cmd) {
	in := func(name string) string { return filepath.Join(n.dir, name) }
	cmd.Dir = n.dir
	cmd.Env = []string{
		"HOME=" + in("home"), // with the node's own cookie
		"PATH=" + n.install.path,
		"LC_ALL=C.UTF-8",
		"RUNNING_UNDER_SYSTEMD=true", // rabbitmq-server calls exec, so our pid is that of the broker
		"ERL_EPMD_ADDRESS=127.0.0.1",
		fmt.Sprintf("ERL_EPMD_PORT=%d", n.epmd),
		"RABBITMQ_NODENAME=" + n.name(),
		fmt.Sprintf("RABBITMQ_DIST_PORT=%d", n.dist),
		"RABBITMQ_CONFIG_FILE=" + in("rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + in("advanced.config"),
		"RABBITMQ_CONF_ENV_FILE=/dev/null",
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + in("enabled_plugins"),
		"RABBITMQ_MNESIA_BASE=" + in("mnesia"),
		"RABBITMQ_LOG_BASE=" + in("log"),
		"RABBITMQ_LOGS=-",
		"RABBITMQ_PID_FILE=" + in("pid"),
		"RABBITMQ_CTL_ERL_ARGS=-kernel net_setuptime 120", // a busy broker does not respond to rabbitmqctl within 7 s
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none",
	}
	if n.plugins != "" {
		own, err := filepath.Glob(filepath.Join(filepath.Dir(n.install.bin), "lib", "rabbitmq_server-*", "plugins"))
		if err == nil {
			cmd.Env = append(cmd.Env, "RABBITMQ_PLUGINS_DIR="+strings.Join(append(own, n.plugins), ":"))
		}
	}
	n.owner.prepare(cmd, syscall.SIGKILL)
}
