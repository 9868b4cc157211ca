#include <array>

#include "launcher/plan/flags.hpp"

namespace ddprun::launcher {

namespace {

using Kind = FlagKind;
using Group = FlagGroup;

constexpr Flag value(std::string_view name, std::string_view placeholder, Group group,
                     std::string_view help, char letter = '\0') {
    return Flag{.name = name,
                .letter = letter,
                .kind = Kind::Value,
                .placeholder = placeholder,
                .group = group,
                .help = help};
}

constexpr Flag on_or_off(std::string_view name, Group group, std::string_view help,
                         char letter = '\0') {
    return Flag{.name = name,
                .letter = letter,
                .kind = Kind::Switch,
                .placeholder = {},
                .group = group,
                .help = help};
}

constexpr Flag without_environment(Flag flag) {
    flag.reads_environment = false;
    return flag;
}

/// torchrun's flags that have nothing to choose here.
constexpr Flag hidden(std::string_view name) {
    return value(name, "VALUE", Group::Hidden, {});
}

constexpr std::array kFlags = {
    value("nnodes", "N|MIN:MAX|A,B", Group::Size,
          "nodes; or least and most; or the sizes allowed (default 1)"),
    value("node-unit", "N", Group::Size, "the number of nodes is a multiple of N (default 1)"),
    value("spare-nodes", "K", Group::Size,
          "of a scheduler's nodes K replace lost ones (default 0)"),
    value("nproc-per-node", "N", Group::Size,
          "workers here (1): number, auto (GPUs, else CPUs), gpu, cpu"),
    value("node-rank", "N", Group::Size, "wish for this node's place (default: chosen, stable)"),
    on_or_off("standalone", Group::Size, "this machine alone; nothing listens but on 127.0.0.1"),
    value("place", "auto|none", Group::Size,
          "nodes, endpoint and GPUs are the scheduler's (default auto)"),

    value("rdzv-endpoint", "HOST[:PORT]", Group::Meeting,
          "where nodes meet; the machine that owns HOST serves it,\nnothing needs to be started"
          " before (default port 29400).\nSeveral with commas: daemons that a site runs with --ha"),
    value("rdzv-id", "ID", Group::Meeting, "name of the job, the same on every node"),
    value("rdzv-conf", "K=V,K=V", Group::Meeting,
          "seconds: last_call_timeout (30) to start below MAX nodes,\n"
          "join_timeout (600) to wait for MIN nodes, grow_delay (30)\n"
          "from a start to growing; others as the flags of their name"),
    value("rdzv-backend", "NAME", Group::Meeting,
          "c10d or static: ddprun's own; static: at --master-port"),
    value("master-addr", "HOST", Group::Meeting, "where nodes meet if there is no --rdzv-endpoint"),
    value("master-port", "PORT", Group::Meeting,
          "port of the workers' store (default: any free); beside\n--master-addr nodes meet there, "
          "too, as with --store daemon"),
    value("store", "agent|daemon", Group::Meeting,
          "who serves the workers' store: the first node on a port of\nits own (default), or the"
          " rendezvous on its own port"),
    value("store-admit", "members|any", Group::Meeting,
          "whom it answers: the job's nodes (default), or all (NAT)"),
    value("store-relay", "on|off", Group::Meeting,
          "this node's workers share a connection to it (default off)"),
    value("local-addr", "HOST", Group::Meeting,
          "this node's address (default: that of the way to HOST)"),
    value("ifname", "NAME|auto", Group::Meeting,
          "interface of NCCL and Gloo; auto: that of the way to HOST"),
    value("topology", "KEY", Group::Meeting,
          "nodes with one key are near each other: so are their ranks,\nand spares replace a node"
          " near them (default: Slurm's)"),
    value("same", "strict|warn|off", Group::Meeting,
          "nodes that differ (program, torch): refused, told (default)"),
    value("node-id", "ID", Group::Meeting, "this node's name across restarts (default: derived)"),
    value("secret-file", "FILE", Group::Meeting,
          "the nodes' common secret (default ~/.config/ddprun/secret,\nmade on first use;"
          " the same file must be on every node)"),
    value("operator-secret-file", "FILE", Group::Meeting,
          "whoever holds it may order (ddpctl drain, stop, ...)"),
    on_or_off("insecure", Group::Meeting, "no secret: whoever reaches the port may join"),
    value("tls-ca", "FILE", Group::Meeting,
          "speak TLS 1.3; authority of the rendezvous's certificate"),
    value("tls-cert", "FILE", Group::Meeting,
          "what this node shows; of the node that owns HOST, also what\nits rendezvous shows"),
    value("tls-key", "FILE", Group::Meeting, "the private key of --tls-cert, without a passphrase"),

    value("max-restarts", "N", Group::Failing,
          "worker failures survived in the whole run (default 0)"),
    value("max-node-losses", "N", Group::Failing, "nodes that may be lost (default: any number)"),
    value("max-restarts-at-step", "N", Group::Failing,
          "give up after N restarts that failed at one training step,\nwhere workers tell theirs"
          " (default 3; 0: never)"),
    value("hang-timeout", "SECONDS|auto", Group::Failing,
          "no output, CPU or GPU use or progress anywhere for so long:\nstacks saved, all restart"
          " (default 0: never; auto: learned)"),
    value("hang-notice", "SECONDS", Group::Failing,
          "say when no rank told a step for so long (default 600)"),
    value("grow", "auto|never", Group::Failing,
          "let a late node join a running group (default auto)"),
    value("failure-grace", "SECONDS", Group::Failing,
          "SIGTERM to SIGKILL after a failure (default 5)"),
    value("shutdown-timeout", "SECONDS", Group::Failing,
          "the same for a worker asked to save and leave (default 30)"),
    value("drain-on", "SOURCE,...", Group::Failing,
          "workers save and leave, too, when this says the node goes:\naws (spot and rebalance"
          " notices), file:PATH (it is there),\ncmd:COMMAND (ends with 0, or prints the seconds"
          " left; last)"),
    value("kill-wait", "SECONDS", Group::Failing,
          "after its SIGTERM the scheduler kills: workers leave before\n(default 30 under Slurm and"
          " in a pod; 0: not known)"),
    value("rdzv-lost-timeout", "SECONDS", Group::Failing,
          "go on without a rendezvous so long (default 60; site's 600)"),
    value("requeue", "N", Group::Failing,
          "a batch job of Slurm that has left is queued again, N times"),
    value("signals-to-handle", "NAMES", Group::Failing,
          "workers leave on (default SIGTERM,SIGINT,SIGHUP,SIGQUIT)"),
    on_or_off("ignore-hup", Group::Failing, "go on when the terminal is closed"),

    on_or_off("module", Group::Program, "PROGRAM is a Python module", 'm'),
    on_or_off("no-python", Group::Program, "execute PROGRAM itself, even if it ends in .py"),
    on_or_off("run-path", Group::Program, "Python runs PROGRAM by runpy.run_path()"),
    on_or_off("legacy-launch", Group::Program,
              "PROGRAM gets --local-rank=N too, as from torch.distributed\n"
              ".launch; called as ddprun-launch, ddprun does so itself"),
    without_environment(
        on_or_off("use-env", Group::Program, "with --legacy-launch: only LOCAL_RANK, no argument")),
    value("role", "NAME", Group::Program, "what the workers are called (default \"default\")"),

    without_environment(value("numa-binding", "MODE", Group::Placement,
                              "bind workers to CPUs near their GPUs, without GPUs spread\n"
                              "out: node (NUMA node), socket, exclusive (a share of the\n"
                              "node's cores), core-complex (one of its largest caches)")),
    on_or_off("virtual-local-rank", Group::Placement,
              "each worker sees one device and is told LOCAL_RANK=0"),

    value("log-dir", "DIR", Group::Output, "logs; /dev/null: none (${TMPDIR:-/tmp}/ddprun-<uid>)"),
    value("redirects", "CHOICE", Group::Output,
          "only in the log: 0 none, 1 stdout, 2 stderr, 3 both,\n"
          "or by local rank: 0:3,1:1 (default 0)",
          'r'),
    value("tee", "CHOICE", Group::Output, "in the log and, with a prefix, on the console; as above",
          't'),
    value("local-ranks-filter", "RANKS", Group::Output,
          "only these local ranks on the console: 0,1"),
    value("ranks-filter", "RANKS", Group::Output, "the same by rank of the whole job: 0,last"),
    value("fold", "auto|off", Group::Output,
          "equal lines of ranks are one, [0-7]; auto: on a terminal"),
    value("debug-rank", "RANK", Group::Output,
          "gets this terminal (pdb, Ctrl-C), others are quiet; three\n"
          "quick Ctrl-C end the job. A single worker has it anyway"),
    value("prefix", "auto|always|never", Group::Output,
          "[host rank] before each line; auto: on a terminal"),
    value("log-format", "text|json", Group::Output,
          "json: console lines as objects with time, host, rank, ..."),
    value("log-file-size", "SIZE", Group::Output,
          "a log that would pass it (64M, 2G) becomes stdout.log.1 ..."),
    value("log-files-kept", "N", Group::Output,
          "of those full files keep the newest N (default: all)"),
    value("log-keep", "N", Group::Output,
          "keep your newest N runs in the log folder (default: all)"),
    value("duplicate-stdout-filters", "TEXTS", Group::Output,
          "tee'd lines with one of a,b go to filtered_stdout.log too"),
    value("duplicate-stderr-filters", "TEXTS", Group::Output, "the same for stderr"),

    value("notify", "CMD|URL", Group::Other,
          "gets JSON on hang, restart, spare, quarantine and verdict"),
    value("env-per-run", "NAMES", Group::Other,
          "variables that hold this run's number: WANDB_RUN_ID,..."),
    value("containment", "LEVEL", Group::Other,
          "so that none is left: cgroup, pid-namespace, keeper or\nsession (default: cgroup if it "
          "can "
          "be had, else keeper)"),
    value(
        "watch", "exit|preload", Group::Other,
        "notice deaths when the process is gone (default), or before\nits memory is taken down, by "
        "a small preloaded library"),
    value("warm", "auto|on|off|MODULES", Group::Other, "start from standbys (default auto)"),
    value("warm-memory-max", "SIZE", Group::Other, "of all standbys of this node together"),
    value("prepare", "CMD", Group::Other,
          "run CMD on each node (job:CMD: on one) before its workers:\n"
          "downloads, tokenizing; no time-out or barrier waits for it"),
    value("preflight-command", "CMD", Group::Other,
          "the shell's, before each generation; if it fails: exit 97"),
    value("preflight-timeout", "SECONDS", Group::Other, "for CMD to end (default 60)"),
    on_or_off("dry-run", Group::Other, "only print commands, environments and CPUs of the workers"),
    without_environment(on_or_off("version", Group::Other, "print the version")),
    without_environment(on_or_off("help", Group::Other, "print this text", 'h')),

    hidden("monitor-interval"),
    hidden("event-log-handler"),
    without_environment(hidden("logs-specs")),
    hidden("start-method"),
};

}  // namespace

std::span<const Flag> all_flags() {
    return kFlags;
}

}  // namespace ddprun::launcher
