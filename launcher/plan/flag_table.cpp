#include <array>

#include "launcher/plan/fills.hpp"
#include "launcher/plan/flags.hpp"
#include "rendezvous/wire/message_fields.hpp"

namespace ddprun::launcher {

namespace {

using Group = FlagGroup;
using Agent = agent::AgentOptions;
using fill::settings_of;

constexpr int kBudgetMax = 1'000'000;

/// One read of a worker's pipe.
constexpr std::uint64_t kLogFileBytesMin = std::uint64_t{64} << 10;

/// A manifest and some tensors.
constexpr std::uint64_t kMemoryBytesMin = std::uint64_t{1} << 20;

constexpr std::array kGrows = {std::pair{"auto", true}, std::pair{"never", false}};
constexpr std::array kFolds = {std::pair{"auto", true}, std::pair{"off", false}};
constexpr std::array kPrefixes = {std::pair{"auto", PrefixMode::Auto},
                                  std::pair{"always", PrefixMode::Always},
                                  std::pair{"never", PrefixMode::Never}};
constexpr std::array kFormats = {std::pair{"text", false}, std::pair{"json", true}};
constexpr auto kContainments = [] {
    std::array<std::pair<std::string_view, ContainmentLevel>, kContainmentNames.size()> choices{};
    for (std::size_t i = 0; i < choices.size(); ++i) {
        choices.at(i) = {kContainmentNames.at(i).word, kContainmentNames.at(i).level};
    }
    return choices;
}();
constexpr std::array kWatches = {std::pair{"exit", false}, std::pair{"preload", true}};

constexpr std::array kFlags = {
    /// | `N` or `MIN:MAX`, 1 | same; a range is elastic with every backend (torchrun's static one
    /// waits for MAX); errors are a line, not a traceback with exit code 1; at most 16,384. Ours:
    /// `A,B,C`, the [sizes](sizes.md) that are allowed, and `DDPRUN_TARGET_WORLD_SIZE` for workers
    Flag{.name = "nnodes",
         .placeholder = "N|MIN:MAX|A,B",
         .group = Group::Size,
         .elsewhere = "N num-nodes num-machines",
         .help = "nodes; or least and most; or the sizes allowed (default 1)",
         .is_common = true},
    /// | number, 1 | ours: the number of nodes is a multiple of it
    Flag{.name = "node-unit",
         .placeholder = "N",
         .group = Group::Size,
         .help = "the number of nodes is a multiple of N (default 1)"},
    /// | number, 0 | ours: of a [scheduler's](places/README.md#spares) nodes so many wait to
    /// replace lost ones
    Flag{.name = "spare-nodes",
         .placeholder = "K",
         .group = Group::Size,
         .help = "of a scheduler's nodes K replace lost ones (default 0)"},
    /// | number, `auto`, `gpu`, `cpu`; 1 | same, without importing PyTorch: `cpu` is the affinity
    /// mask, `gpu` what [Devices](#devices) says, `auto` the one or the other; at most 1,024. `xpu`
    /// and plug-in devices: refused
    Flag{.name = "nproc-per-node",
         .placeholder = "N",
         .group = Group::Size,
         .elsewhere =
             "n np nprocs num-procs num-processes num-gpus gpus gpus-per-node ntasks-per-node ppn",
         .help = "workers here (1): number, auto (GPUs, else CPUs), gpu, cpu",
         .is_common = true},
    /// | number, none | better: a wish for a place that works with every backend, refused where two
    /// nodes wish the same; torchrun's default 0 on every node hangs
    Flag{.name = "node-rank",
         .placeholder = "N",
         .group = Group::Size,
         .elsewhere = "machine-rank",
         .help = "wish for this node's place (default: chosen, stable)",
         .is_common = true},
    /// | switch | same; `--rdzv-id` is kept; other flags that say where nodes meet are named in a
    /// warning; `--nnodes 2` is refused
    Flag{.name = "standalone",
         .group = Group::Size,
         .help = "this machine alone; nothing listens but on 127.0.0.1",
         .is_common = true},
    /// | `auto`, `none`; `auto` | ours: in a job of Slurm the number of nodes, the endpoint, this
    /// node's rank and the number of workers are the job's, unless a flag or `PET_*` says any of
    /// nodes, rank or endpoint; [what is taken and
    /// refused](places/README.md#what-is-taken-and-refused). torchrun starts a job of one node on
    /// each, without a word
    Flag{.name = "place",
         .placeholder = "auto|none",
         .group = Group::Size,
         .help = "nodes, endpoint and GPUs are the scheduler's (default auto)"},

    /// | `HOST[:PORT]`, `[IPV6]:PORT`; port 29400 | same form. Whichever machine owns HOST serves
    /// it, whatever the order of start. HOST is resolved anew at each attempt until `join_timeout`
    /// is over (a pod's name may appear later), and all its addresses are tried; of several that
    /// are its own the machine serves one, IPv4 first. A text that can never be a host name is
    /// refused at once. Several with commas (`h1:29400,h2`) are daemons that a site runs with
    /// `--ha`; then none is started here. Several nodes without it (and without `--master-addr`):
    /// refused, torchrun means localhost and waits. Port 0 is for one node
    Flag{.name = "rdzv-endpoint",
         .placeholder = "HOST[:PORT]",
         .group = Group::Meeting,
         .help = "where nodes meet; the machine that owns HOST serves it,\nnothing needs to be "
                 "started before (default port 29400).\nSeveral with commas: daemons that a site "
                 "runs with --ha",
         .is_common = true},
    /// | name | one node: random. Several: `none` as torchrun, with a warning. It becomes part of
    /// file names, so `/`, blanks and a leading `.` are refused; at most 246 bytes
    Flag{.name = "rdzv-id",
         .placeholder = "ID",
         .group = Group::Meeting,
         .elsewhere = "job-id",
         .help = "name of the job, the same on every node",
         .is_common = true},
    /// | `K=V,K=V` | see below
    Flag{.name = "rdzv-conf",
         .placeholder = "K=V,K=V",
         .group = Group::Meeting,
         .help = "seconds: last_call_timeout (30) to start below MAX nodes,\njoin_timeout (600) to "
                 "wait for MIN nodes, grow_delay (30)\nfrom a start to growing; others as the "
                 "flags of their name"},
    /// | `c10d`, `static` | both mean ddprun's own rendezvous; `static` says what the port of
    /// `--rdzv-endpoint` is, see below. `etcd`, `etcd-v2`, plug-ins: refused
    Flag{.name = "rdzv-backend",
         .placeholder = "NAME",
         .group = Group::Meeting,
         .help = "c10d or static: ddprun's own; static: at --master-port"},
    /// | host | where nodes meet if there is no endpoint (torchrun's static way, see below)
    Flag{.name = "master-addr",
         .placeholder = "HOST",
         .group = Group::Meeting,
         .elsewhere = "main-process-ip",
         .help = "where nodes meet if there is no --rdzv-endpoint"},
    /// | port, any free | the workers' store listens there on rank 0's node: same (on one with a
    /// `--node-rank` above 0, should it become the first, at any free port); torchrun's default is
    /// 29500, which two jobs cannot share. The port of a c10d endpoint: a warning, and a free one
    /// is taken
    Flag{.name = "master-port",
         .placeholder = "PORT",
         .group = Group::Meeting,
         .elsewhere = "main-process-port",
         .help = "port of the workers' store (default: any free); beside\n--master-addr nodes meet "
                 "there, too, as with --store daemon"},
    /// | `agent` or `daemon`, `agent` | ours: who serves the workers' store. `daemon`: the
    /// rendezvous does, on the port of the endpoint, for sites that open one port; `MASTER_ADDR`
    /// and `MASTER_PORT` are where this node reached it. A fresh one for each generation. One job
    /// at a time per daemon, a second one is refused; a daemon that dies takes the store with it,
    /// and workers that ask it again fail ([rendezvous/server](../rendezvous/server/README.md)).
    /// TLS does not hide it
    Flag{.name = "store",
         .placeholder = "agent|daemon",
         .group = Group::Meeting,
         .help = "who serves the workers' store: the first node on a port of\nits own (default), "
                 "or the rendezvous on its own port"},
    /// | `members` or `any`, `members` | ours: whom that store answers, addresses of the job's
    /// nodes or every client that reaches it (workers behind NAT, sidecars). The same on all nodes.
    /// A refused client is named on the console of rank 0's node
    Flag{.name = "store-admit",
         .placeholder = "members|any",
         .group = Group::Meeting,
         .help = "whom it answers: the job's nodes (default), or all (NAT)"},
    /// | `on` or `off`, `off` | ours, for each node on its own: its workers reach another node's
    /// store through a relay on 127.0.0.1 and share one connection to it
    /// (`rendezvous/store/relay/README.md`, also for what is measured: with 100 nodes it does not
    /// pay). A job of more than 65,536 workers (`--nnodes` MIN times `--nproc-per-node`) is refused
    /// without it; a line warns of a MAX that allows more. `MASTER_ADDR` is 127.0.0.1 then, except
    /// on the first node with `--store agent`: programs that listen or dial there for other things
    /// than PyTorch's store need `off`
    Flag{.name = "store-relay",
         .placeholder = "on|off",
         .group = Group::Meeting,
         .help = "this node's workers share a connection to it (default off)"},
    /// | host or address | same; the default is the address of the way to the endpoint, not a host
    /// name that others may not resolve
    Flag{.name = "local-addr",
         .placeholder = "HOST",
         .group = Group::Meeting,
         .help = "this node's address (default: that of the way to HOST)"},
    /// | name, `auto`; none | ours: `NCCL_SOCKET_IFNAME` and `GLOO_SOCKET_IFNAME` of the workers,
    /// never over what is set: [networks](networks.md#which-interface)
    Flag{.name = "ifname",
         .placeholder = "NAME|auto",
         .group = Group::Meeting,
         .help = "interface of NCCL and Gloo; auto: that of the way to HOST"},
    /// | name, Slurm's switches | ours: nodes with the same key are near each other. They get ranks
    /// beside each other, and a lost one is replaced by a spare near it
    Flag{.name = "topology",
         .placeholder = "KEY",
         .group = Group::Meeting,
         .help = "nodes with one key are near each other: so are their ranks,\nand spares replace "
                 "a node near them (default: Slurm's)"},
    /// | `warn`, `strict`, `off`; `warn` | ours: what is done about nodes whose program, Python,
    /// torch, NCCL or driver [differ](same.md): said, refused with exit code 2, or nothing
    Flag{.name = "same",
         .placeholder = "strict|warn|off",
         .group = Group::Meeting,
         .help = "nodes that differ (program, torch): refused, told (default)",
         .fill = fill::choice<rdzv::kSamenessNames, settings_of, &rdzv::JobSettings::same>},
    /// | name, derived | ours: the node's name across restarts
    Flag{.name = "node-id",
         .placeholder = "ID",
         .group = Group::Meeting,
         .help = "this node's name across restarts (default: derived)"},
    /// | file, `~/.config/ddprun/secret`; [under a scheduler](places/README.md) also one in the
    /// job's folder | ours; `DDPRUN_SECRET_FILE` too. A given file must exist
    Flag{.name = "secret-file",
         .placeholder = "FILE",
         .group = Group::Meeting,
         .help = "the nodes' common secret (default ~/.config/ddprun/secret,\nmade on first use; "
                 "the same file must be on every node)",
         .is_common = true},
    /// | a file | ours: [`ddpctl drain`, `restart`, `hold`, …](ddpctl.md) are taken from a
    /// client that holds this secret. torchrun: a job takes no orders
    Flag{.name = "operator-secret-file",
         .placeholder = "FILE",
         .group = Group::Meeting,
         .help = "whoever holds it may order (ddpctl drain, stop, ...)"},
    /// | switch | ours: no secret. torchrun has none
    Flag{.name = "insecure",
         .group = Group::Meeting,
         .help = "no secret: whoever reaches the port may join",
         .fill = fill::on<&LaunchPlan::is_insecure>},
    /// | file, none | ours: TLS 1.3 to the rendezvous, whose certificate must be of this authority
    /// and for the host of `--rdzv-endpoint` ([rendezvous/wire](../rendezvous/wire/README.md)). The
    /// workers' own traffic is not hidden by it
    Flag{.name = "tls-ca",
         .placeholder = "FILE",
         .group = Group::Meeting,
         .help = "speak TLS 1.3; authority of the rendezvous's certificate"},
    /// | file, none | ours: what this node shows. The `ddprun` that owns the endpoint gives the
    /// three files to the rendezvous it starts, which then lets in only who shows a certificate
    /// too; without these two it starts none
    Flag{.name = "tls-cert",
         .placeholder = "FILE",
         .group = Group::Meeting,
         .help =
             "what this node shows; of the node that owns HOST, also what\nits rendezvous shows"},
    /// | file, none | ours: beside `--tls-cert`
    Flag{.name = "tls-key",
         .placeholder = "FILE",
         .group = Group::Meeting,
         .help = "the private key of --tls-cert, without a passphrase"},

    /// | number, 0 | better: one budget for the whole run; torchrun counts on each node
    Flag{.name = "max-restarts",
         .placeholder = "N",
         .group = Group::Failing,
         .elsewhere = "restarts retries",
         .help = "worker failures survived in the whole run (default 0)",
         .is_common = true,
         .fill = fill::whole_number<0, kBudgetMax, settings_of, &rdzv::JobSettings::max_restarts>},
    /// | number, unbounded | ours
    Flag{.name = "max-node-losses",
         .placeholder = "N",
         .group = Group::Failing,
         .conf_key = "max_node_losses",
         .help = "nodes that may be lost (default: any number)",
         .fill =
             fill::whole_number<0, kBudgetMax, settings_of, &rdzv::JobSettings::max_node_losses>},
    /// | number, 3 | ours: after so many restarts that all failed at the same training step
    /// (workers with the runtime report theirs) the run ends with 93; 0: never
    Flag{.name = "max-restarts-at-step",
         .placeholder = "N",
         .group = Group::Failing,
         .help = "give up after N restarts that failed at one training step,\nwhere workers tell "
                 "theirs (default 3; 0: never)",
         .fill = fill::whole_number<0, kBudgetMax, settings_of,
                                    &rdzv::JobSettings::max_restarts_at_step>},
    /// | seconds, or `auto`; 0 | ours: when no worker of any node shows output, CPU use, GPU use or
    /// progress for so long, the stacks of all threads (and, where it is on, NCCL's [flight
    /// recorder](hangs.md#nccls-flight-recorder)) are saved and the generation is restarted, at the
    /// cost of one of `--max-restarts`; beyond them the run ends with 94. 0: never looked for. The
    /// least is 1 s. The same on every node. [What counts, and what `auto` does](hangs.md)
    Flag{.name = "hang-timeout",
         .placeholder = "SECONDS|auto",
         .group = Group::Failing,
         .help = "no output, CPU or GPU use or progress anywhere for so long:\nstacks saved, all "
                 "restart (default 0: never; auto: learned)",
         .is_common = true,
         .fill = fill::hang_timeout},
    /// | seconds; 600 | ours: when no worker of a node that reports its steps has reported one for
    /// so long, a line and an event say so, once a generation, and name the rank furthest behind;
    /// nothing is ended. 0: never. [Hangs](hangs.md#a-notice)
    Flag{.name = "hang-notice",
         .placeholder = "SECONDS",
         .group = Group::Failing,
         .help = "say when no rank told a step for so long (default 600)",
         .fill = fill::hang_notice},
    /// | `auto`, `never` | ours
    Flag{.name = "grow",
         .placeholder = "auto|never",
         .group = Group::Failing,
         .help = "let a late node join a running group (default auto)",
         .fill = fill::choice<kGrows, settings_of, &rdzv::JobSettings::grow>},
    /// | seconds, 5 | ours: SIGTERM to SIGKILL after a failure, never above `--shutdown-timeout`;
    /// torchrun always waits 30 s. If deaths are [known at
    /// once](containment.md#how-a-death-is-noticed) a core that is still being written then is cut
    /// off: to keep large ones, give them the time
    Flag{.name = "failure-grace",
         .placeholder = "SECONDS",
         .group = Group::Failing,
         .conf_key = "failure_grace",
         .help = "SIGTERM to SIGKILL after a failure (default 5)",
         .fill = fill::seconds<settings_of, &rdzv::JobSettings::failure_grace>},
    /// | seconds, `TORCH_ELASTIC_SHUTDOWN_TIMEOUT`, 30 | same; fractions too
    Flag{.name = "shutdown-timeout",
         .placeholder = "SECONDS",
         .group = Group::Failing,
         .variable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
         .help = "the same for a worker asked to save and leave (default 30)",
         .fill = fill::seconds<settings_of, &rdzv::JobSettings::shutdown_timeout>},
    /// | `aws`, `file:PATH`, `cmd:COMMAND`, with commas; a command is last | ours:
    /// [notices](leaving.md#notices) that this node will be taken away
    Flag{.name = "drain-on",
         .placeholder = "SOURCE,...",
         .group = Group::Failing,
         .help = "workers save and leave, too, when this says the node goes:\naws (spot and "
                 "rebalance notices), file:PATH (it is there),\ncmd:COMMAND (ends with 0, or "
                 "prints the seconds left; last)",
         .is_common = true},
    /// | seconds | ours: how long after its SIGTERM the scheduler kills; workers have [until 3 s
    /// before](leaving.md). Default 30 under Slurm (its `KillWait`) and in a pod, unless
    /// `--shutdown-timeout` says something else; 0: not known
    Flag{.name = "kill-wait",
         .placeholder = "SECONDS",
         .group = Group::Failing,
         .help = "after its SIGTERM the scheduler kills: workers leave before\n(default 30 under "
                 "Slurm and in a pod; 0: not known)"},
    /// | seconds, 60; 600 if the site keeps the rendezvous running | ours
    Flag{.name = "rdzv-lost-timeout",
         .placeholder = "SECONDS",
         .group = Group::Failing,
         .conf_key = "lost_timeout",
         .help = "go on without a rendezvous so long (default 60; site's 600)",
         .fill = fill::rendezvous_lost_timeout},
    /// | number, 0 | ours: a batch job of Slurm that has left in time [goes back into the
    /// queue](places/slurm.md#back-into-the-queue), at most so often in all (`SLURM_RESTART_COUNT`)
    Flag{.name = "requeue",
         .placeholder = "N",
         .group = Group::Failing,
         .help = "a batch job of Slurm that has left is queued again, N times"},
    /// | names, `SIGTERM,SIGINT,SIGHUP,SIGQUIT` | same; SIGUSR1 and SIGUSR2, unless named here, are
    /// passed on to the workers of this node that have a handler for them (torchrun dies of them);
    /// also USR1, USR2, ALRM, XCPU, PWR; other names are refused where torchrun warns and goes on
    /// without them
    Flag{.name = "signals-to-handle",
         .placeholder = "NAMES",
         .group = Group::Failing,
         .help = "workers leave on (default SIGTERM,SIGINT,SIGHUP,SIGQUIT)",
         .fill = fill::signals},
    /// | switch | ours
    Flag{.name = "ignore-hup",
         .group = Group::Failing,
         .help = "go on when the terminal is closed",
         .fill = fill::ignore_hup},

    /// | switch | same (`--no-python` beside it: refused)
    Flag{.name = "module",
         .letter = 'm',
         .group = Group::Program,
         .help = "PROGRAM is a Python module",
         .is_common = true},
    /// | switch | same; needed only for an executable whose name ends in `.py`
    Flag{.name = "no-python",
         .group = Group::Program,
         .help = "execute PROGRAM itself, even if it ends in .py"},
    /// | switch | same: Python runs the file as `__main__` by `runpy.run_path()`, and leaves an
    /// exception in the error file; wins over `-m` and `--no-python`. In a process of its own, see
    /// below
    Flag{.name = "run-path",
         .group = Group::Program,
         .help = "Python runs PROGRAM by runpy.run_path()"},
    /// | switch | `python -m torch.distributed.launch`: `--local-rank=N` stands before the
    /// program's own arguments; `--local_rank=N` for a script whose text has only that flag (torch:
    /// always the first, which such a script refuses). `ddprun-launch`, a link to `ddprun`, does so
    /// without the flag. `--no-python` beside it: refused, as there
    Flag{.name = "legacy-launch",
         .group = Group::Program,
         .help = "PROGRAM gets --local-rank=N too, as from torch.distributed\n.launch; called as "
                 "ddprun-launch, ddprun does so itself"},
    /// | switch | same: with `--legacy-launch` no argument, only LOCAL_RANK
    Flag{.name = "use-env",
         .group = Group::Program,
         .help = "with --legacy-launch: only LOCAL_RANK, no argument",
         .reads_environment = false},
    /// | name, `default` | same; a name like `--rdzv-id`, at most 255 bytes
    Flag{.name = "role",
         .placeholder = "NAME",
         .group = Group::Program,
         .help = "what the workers are called (default \"default\")",
         .fill = fill::role},

    /// | `node`, `socket`, `exclusive`, `core-complex`; none | same CPUs, set before the program is
    /// executed. Better: needs neither CUDA nor `numactl`. The CPUs are hwloc's, those of the
    /// affinity mask and cpuset; a worker is near the GPU of its local rank as
    /// `CUDA_VISIBLE_DEVICES` orders them. More workers than GPUs share them in turn; without GPUs
    /// workers are spread over the NUMA nodes, neighbours together. `exclusive` with fewer cores
    /// than workers: refused
    Flag{.name = "numa-binding",
         .placeholder = "MODE",
         .group = Group::Placement,
         .help = "bind workers to CPUs near their GPUs, without GPUs spread\nout: node (NUMA "
                 "node), socket, exclusive (a share of the\nnode's cores), core-complex (one of "
                 "its largest caches)",
         .reads_environment = false},
    /// | switch | same: LOCAL_RANK is 0, and CUDA_VISIBLE_DEVICES the entry of the local rank, or
    /// its number where the variable is unset. Too few entries: refused, a line. The local rank
    /// itself is in `DDPRUN_SLOT`
    Flag{.name = "virtual-local-rank",
         .group = Group::Placement,
         .help = "each worker sees one device and is told LOCAL_RANK=0"},

    /// | folder, `${TMPDIR:-/tmp}/ddprun-<uid>` | same; one known place instead of a new
    /// `torchelastic_*` for each start; relative ones are made absolute for the workers.
    /// `/dev/null`: no files, and everything is shown as it comes
    Flag{.name = "log-dir",
         .placeholder = "DIR",
         .group = Group::Output,
         .help = "logs; /dev/null: none (${TMPDIR:-/tmp}/ddprun-<uid>)",
         .is_common = true},
    /// | `0` to `3`, or `RANK:M,…` | same; ranks may have several digits
    Flag{.name = "redirects",
         .letter = 'r',
         .placeholder = "CHOICE",
         .group = Group::Output,
         .help = "only in the log: 0 none, 1 stdout, 2 stderr, 3 both,\nor by local rank: 0:3,1:1 "
                 "(default 0)",
         .is_common = true},
    /// | the same | same
    Flag{.name = "tee",
         .letter = 't',
         .placeholder = "CHOICE",
         .group = Group::Output,
         .help = "in the log and, with a prefix, on the console; as above",
         .is_common = true},
    /// | `0,1` | same
    Flag{.name = "local-ranks-filter",
         .placeholder = "RANKS",
         .group = Group::Output,
         .help = "only these local ranks on the console: 0,1",
         .is_common = true},
    /// | `0,last` | ours: the same by rank of the whole job, `last` is the highest of each
    /// generation. Shown is who both filters allow. Log files stay whole. It may differ from node
    /// to node
    Flag{.name = "ranks-filter",
         .placeholder = "RANKS",
         .group = Group::Output,
         .help = "the same by rank of the whole job: 0,last"},
    /// | `auto`, `off` | ours: on a terminal equal lines that several ranks write within 0.2 s are
    /// one, with `[0-7]` before it; `off`: each by itself, at once
    Flag{
        .name = "fold",
        .placeholder = "auto|off",
        .group = Group::Output,
        .help = "equal lines of ranks are one, [0-7]; auto: on a terminal",
        .fill =
            fill::choice<kFolds, &LaunchPlan::agent, &Agent::output, &agent::OutputOptions::folds>},
    /// | number, none | ours: that rank of the job gets a controlling pseudo-terminal that ddprun
    /// relays (pdb, readline, Ctrl-C), the others write to their logs only, hangs are not looked
    /// for. A single worker at a terminal has it without the flag ([debugging](debugging.md))
    Flag{.name = "debug-rank",
         .placeholder = "RANK",
         .group = Group::Output,
         .help = "gets this terminal (pdb, Ctrl-C), others are quiet; three\nquick Ctrl-C end the "
                 "job. A single worker has it anyway",
         .is_common = true},
    /// | `auto`, `always`, `never` | ours: `[host rank]` before each line; on the terminal of a
    /// single node `[rank]`. `auto`: on a terminal, and not for a worker that has it to itself
    Flag{.name = "prefix",
         .placeholder = "auto|always|never",
         .group = Group::Output,
         .help = "[host rank] before each line; auto: on a terminal",
         .fill = fill::choice<kPrefixes, &LaunchPlan::prefix>},
    /// | text; `[${role_name}${local_rank}]:` | same as torchrun 2.14's: stands before tee'd lines,
    /// with `${role_name}`, `${hostname}`, `${rank}` and `${local_rank}`; `--prefix always` wins
    Flag{
        .name = "log-line-prefix-template",
        .placeholder = "TEXT",
        .group = Group::Output,
        .variable = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
        .help = "before tee'd lines, such as '${hostname}:${rank}: '",
        .fill =
            fill::text<&LaunchPlan::agent, &Agent::output, &agent::OutputOptions::prefix_template>},
    /// | `text`, `json` | ours: with `json` each console line, the workers' and ddprun's own, is an
    /// object with `time`, `host`, `stream` (`stdout`, `stderr`, `output` where these are one,
    /// `ddprun`), of a worker also `rank`, `local_rank`, `generation`, and `message`. Log files
    /// stay as the workers wrote them; what is said before the job starts is text
    Flag{.name = "log-format",
         .placeholder = "text|json",
         .group = Group::Output,
         .help = "json: console lines as objects with time, host, rank, ...",
         .fill = fill::choice<kFormats, &LaunchPlan::agent, &Agent::output,
                              &agent::OutputOptions::is_json>},
    /// | bytes with `K`, `M`, `G`, `T`; no limit | ours: a `stdout.log` or `stderr.log` that would
    /// pass it becomes `stdout.log.1`, the next `.2` and so on, cut between lines. At least `64K`
    Flag{.name = "log-file-size",
         .placeholder = "SIZE",
         .group = Group::Output,
         .help = "a log that would pass it (64M, 2G) becomes stdout.log.1 ...",
         .fill = fill::bytes<kLogFileBytesMin, &LaunchPlan::agent, &Agent::output,
                             &agent::OutputOptions::rotation, &agent::LogRotation::file_bytes_max>},
    /// | number; all | ours: only the newest so many of those full files stay
    Flag{
        .name = "log-files-kept",
        .placeholder = "N",
        .group = Group::Output,
        .help = "of those full files keep the newest N (default: all)",
        .fill = fill::whole_number<1, kBudgetMax, &LaunchPlan::agent, &Agent::output,
                                   &agent::OutputOptions::rotation, &agent::LogRotation::kept_max>},
    /// | number; all | ours: while the job runs, [older runs](logs.md#runs-in-the-log-folder) of
    /// this user are removed from the log folder until so many are left, this one among them; runs
    /// that a ddprun still writes, or another machine's may, stay
    Flag{.name = "log-keep",
         .placeholder = "N",
         .group = Group::Output,
         .help = "keep your newest N runs in the log folder (default: all)",
         .fill = fill::whole_number<1, kBudgetMax, &LaunchPlan::log_runs_kept>},
    /// | `apple,pear`; `,,` is a comma | same: tee'd lines that hold one of the texts are also kept
    /// in `attempt_<n>/filtered_stdout.log`. Without a tee'd stream: a
    /// warning
    Flag{.name = "duplicate-stdout-filters",
         .placeholder = "TEXTS",
         .group = Group::Output,
         .help = "tee'd lines with one of a,b go to filtered_stdout.log too"},
    /// | the same | same, with `filtered_stderr.log`
    Flag{.name = "duplicate-stderr-filters",
         .placeholder = "TEXTS",
         .group = Group::Output,
         .help = "the same for stderr"},

    /// | a command for `/bin/sh`, or `http://…`, `https://…` | ours: gets a JSON object on hang,
    /// restart, spare, quarantine and verdict: [notices](notify.md)
    Flag{.name = "notify",
         .placeholder = "CMD|URL",
         .group = Group::Other,
         .help = "gets JSON on hang, restart, spare, quarantine and verdict",
         .is_common = true,
         .fill = fill::notify},
    /// | names of variables, with commas | ours: each worker finds `DDPRUN_RUN_ID` there, too,
    /// unless it is set: [trackers](curves.md#weights--biases-mlflow-and-others) continue their run
    /// after a restart. Refused: what is no name, what ddprun sets itself, and a job of several
    /// nodes without `--rdzv-id`
    Flag{.name = "env-per-run",
         .placeholder = "NAMES",
         .group = Group::Other,
         .help = "variables that hold this run's number: WANDB_RUN_ID,..."},
    /// | `cgroup`, `pid-namespace`, `keeper`, `session` | ours: how workers are held together so
    /// that none is left, see [containment](containment.md). Without it `cgroup` is taken if it can
    /// be had, else `keeper`; with it no other: where it cannot be had nothing starts and one line
    /// says what is missing. In a PID namespace workers see other pids than the node does.
    /// `--dry-run` and `ddpctl status --json` report which it is
    Flag{.name = "containment",
         .placeholder = "LEVEL",
         .group = Group::Other,
         .help = "so that none is left: cgroup, pid-namespace, keeper or\nsession (default: cgroup "
                 "if it can be had, else keeper)",
         .fill = fill::choice<kContainments, &LaunchPlan::containment>},
    /// | `exit`, `preload`; `exit` | ours: with `preload` the failure of a worker is known before
    /// its memory is taken down and its core is written, whatever their size (0.6 ms against 0.24 s
    /// with 2 GiB), by a small library in LD_PRELOAD. Workers with the C++ runtime need no flag.
    /// [How a death is noticed](containment.md#how-a-death-is-noticed)
    Flag{.name = "watch",
         .placeholder = "exit|preload",
         .group = Group::Other,
         .help = "notice deaths when the process is gone (default), or before\nits memory is taken "
                 "down, by a small preloaded library",
         .fill = fill::choice<kWatches, &LaunchPlan::is_watched_by_preload>},
    /// | `auto`, `on`, `off`, modules: `torch,torch._dynamo` | ours: workers of Python, and of
    /// programs that use `ddprun::run()`, start from [standbys](warm.md) that have imported these,
    /// or what a worker imports; `auto`, the default: where workers may start again. torchrun:
    /// every worker starts cold
    Flag{.name = "warm",
         .placeholder = "auto|on|off|MODULES",
         .group = Group::Other,
         .help = "start from standbys (default auto)"},
    /// | bytes: `2G` | ours: the standbys of this node together have no more memory
    Flag{.name = "warm-memory-max",
         .placeholder = "SIZE",
         .group = Group::Other,
         .help = "of all standbys of this node together",
         .fill = fill::bytes<0, &LaunchPlan::agent, &Agent::warm, &agent::WarmOptions::memory_max>},
    /// | bytes: `8G` | ours: the newest checkpoint of the workers of this node stays in so much
    /// memory, beside the one on the disk, and survives the workers
    Flag{.name = "memory-checkpoints",
         .placeholder = "SIZE",
         .group = Group::Other,
         .help = "keep the newest checkpoint in SIZE of this node's memory",
         .fill = fill::bytes<kMemoryBytesMin, &LaunchPlan::agent, &Agent::memory,
                             &agent::MemoryOptions::bytes_max>},
    /// | 0 or 1, 0 | ours: so many other nodes keep a copy of each node's checkpoint in memory, so
    /// that it survives the machine; it needs `--memory-checkpoints`
    Flag{.name = "memory-replicas",
         .placeholder = "N",
         .group = Group::Other,
         .help = "other nodes that keep a copy of it: 0 (default) or 1",
         .fill = fill::whole_number<0, 1, settings_of, &rdzv::JobSettings::memory_replicas>},
    /// | a command for `/bin/sh`, `job:` before it: one node runs it for all | ours: run before the
    /// first workers of each node, outside every time-out: [preparing](preparing.md)
    Flag{.name = "prepare",
         .placeholder = "CMD",
         .group = Group::Other,
         .help = "run CMD on each node (job:CMD: on one) before its workers:\ndownloads, "
                 "tokenizing; no time-out or barrier waits for it",
         .fill = fill::prepare},
    /// | a command for `/bin/sh` | ours: the site's own check of a machine, with
    /// ddprun's environment and console, run on each node before it joins and again before each
    /// further generation, while no worker lives there. It dies with ddprun, with all of its
    /// process group; [what leaves that](containment.md#what-it-is-not-for) stays. If it fails, or
    /// does not end in time and is killed, the node says why, leaves
    /// the job or does not join it, and exits with 97; the others go on if they are enough. Those
    /// that wait for it, and rank 0's node, say which node it is and why (`node7 is not fit (its
    /// preflight command exited with code 1)`), `ddpctl status` too. Started again it is checked
    /// again, and then left out for ten minutes while the others suffice
    /// ([quarantine](../rendezvous/core/README.md#rules))
    Flag{.name = "preflight-command",
         .placeholder = "CMD",
         .group = Group::Other,
         .help = "the shell's, before each generation; if it fails: exit 97",
         .fill = fill::text<&LaunchPlan::agent, &Agent::preflight_command>},
    /// | seconds, 60 | ours: so long that command may take
    Flag{.name = "preflight-timeout",
         .placeholder = "SECONDS",
         .group = Group::Other,
         .help = "for CMD to end (default 60)",
         .fill = fill::some_seconds<&LaunchPlan::agent, &Agent::preflight_timeout>},
    /// | switch | ours: prints where nodes meet and each worker's command, CPUs and environment, as
    /// the agent would set it; starts nothing, exit code 0
    Flag{.name = "dry-run",
         .group = Group::Other,
         .help = "only print commands, environments and CPUs of the workers",
         .is_common = true,
         .fill = fill::on<&LaunchPlan::is_dry_run>},
    /// | `bash`, `zsh`, `tcsh`, `fish` | same, with fish, and without Python: prints what the shell
    /// reads to complete ddprun's flags, exit code 0. `eval "$(ddprun --print-completion bash)"`
    Flag{.name = "print-completion",
         .placeholder = "bash|zsh|tcsh|fish",
         .group = Group::Other,
         .help = "print what that shell reads to complete flags"},
    /// | switch | answers beside any mistake
    Flag{.name = "version",
         .group = Group::Other,
         .help = "print the version",
         .is_common = true,
         .reads_environment = false},
    /// | switch | shows the flags that most jobs need, torchrun's shows all: `--help-all` does;
    /// answers beside any mistake
    Flag{.name = "help",
         .letter = 'h',
         .group = Group::Other,
         .help = "print the flags that most jobs need",
         .is_common = true,
         .reads_environment = false},
    /// | switch | ours: every flag, the exit codes and the variables; answers beside any mistake
    Flag{.name = "help-all",
         .group = Group::Other,
         .help = "print every flag",
         .is_common = true,
         .reads_environment = false},

    /// | anything: nothing polls |
    Flag{.name = "monitor-interval", .placeholder = "VALUE", .group = Group::Hidden},
    /// | `null`; `console` with a warning: what happens is said, not as JSON | refused: ddprun has
    /// no event handlers; leave it out
    Flag{.name = "event-log-handler", .placeholder = "VALUE", .group = Group::Hidden},
    /// | `default` | refused: ddprun has no log plug-ins; leave it out
    Flag{.name = "logs-specs",
         .placeholder = "VALUE",
         .group = Group::Hidden,
         .reads_environment = false},
    /// | `spawn`, `fork`, `forkserver`: workers are executed | refused: must be one of them
    Flag{.name = "start-method", .placeholder = "VALUE", .group = Group::Hidden},
};

}  // namespace

std::span<const Flag> all_flags() {
    return kFlags;
}

}  // namespace ddprun::launcher
