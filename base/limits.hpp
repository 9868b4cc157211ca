#pragma once

#include <cstddef>
#include <cstdint>

#include "base/instant.hpp"

namespace ddprun {

/// Every bound of the project, in one place. A comment gives unit and reason; docs/limits.md is
/// made from them for users (scripts/limits_table.py).
struct Limits {
    // Wire.
    std::size_t frame_bytes_max = std::size_t{1} << 20;       ///< body of one frame
    std::size_t json_depth_max = 16;                          ///< nesting of a message
    std::size_t send_queue_bytes_max = std::size_t{8} << 20;  ///< unsent bytes per connection
    std::size_t hello_bytes_max = 256;  ///< read from a peer that has not proved itself
    Milliseconds hello_timeout{3000};   ///< for the whole handshake
    /// for the answer to what an operator asks or orders: above etcd_record_patience, for which a
    /// leader may hold it back
    Milliseconds answer_timeout{6000};
    /// from the handshake to the join: two checks of a machine; who takes longer connects again
    Milliseconds join_deadline{120000};
    Milliseconds keepalive_after{15000};         ///< nothing heard: then the kernel probes the peer
    Milliseconds keepalive_interval{5000};       ///< between these probes
    std::size_t half_open_max = 2048;            ///< connections in the handshake at once
    std::size_t half_open_per_source_max = 512;  ///< of these, from one address
    Milliseconds half_open_grace{250};  ///< no younger one is closed to make room for another
    /// with TLS, read from a peer that has not proved itself: certificates and all
    std::size_t tls_hello_bytes_max = 65536;
    std::size_t status_nodes_max = 1024;       ///< nodes listed in one status
    Milliseconds connect_timeout{5000};        ///< one attempt to reach an endpoint
    Milliseconds reconnect_backoff_min{20};    ///< first pause between attempts, then doubled
    Milliseconds reconnect_backoff_max{1000};  ///< the longest of these pauses
    Milliseconds close_timeout{1000};          ///< flushing, and waiting for the peer's end
    std::size_t log_backlog_bytes_max = std::size_t{1} << 20;  ///< of the daemon, for a slow reader
    Milliseconds log_flush_timeout{1000};  ///< at the daemon's end, for a reader that has stopped
    int daemon_starts_max = 3;             ///< of a daemon that has not said once that it listens
    int redirects_max = 4;     ///< followed in a row: daemons that name each other disagree
    int missed_turns_max = 8;  ///< of a daemon that does not answer; it may be the only one left

    // Membership.
    Milliseconds lease{1000};           ///< how long a silent node is still believed alive
    Milliseconds beat_interval{200};    ///< five beats to a lease
    int beats_per_second_max = 10'000;  ///< of one run: more nodes beat less often, thrice a lease
    Milliseconds self_doubt{5000};      ///< half of the nodes fell silent at once: perhaps it is us
    Milliseconds link_silence_max{1500};   ///< beats unanswered: the agent looks for another daemon
    Milliseconds reconnect_grace{5000};    ///< a restarted daemon waits so long for each node
    Milliseconds adoption_patience{3000};  ///< without a journal: for nodes that agree
    /// a restored run to which no node comes back is kept: longest default of --rdzv-lost-timeout
    Milliseconds restored_run_kept{600000};
    /// longest silence that a stalled daemon excuses, its stalls not counted: twice reconnect_grace
    Milliseconds doubted_silence_max{10000};
    Milliseconds verdict_kept{60000};  ///< a closed run answers late members this long
    std::size_t nodes_max = 16384;     ///< members and spares of one run
    std::size_t jobs_max = 1024;       ///< runs of one daemon
    int slots_max = 1024;              ///< workers of one node; clients in one relay frame
    int node_losses_max = 1'000'000;   ///< of one run; a node that reports more is not believed
    int cpus_max = 1 << 16;            ///< of one machine; far above any kernel's NR_CPUS
    std::size_t name_bytes_max = 255;  ///< job ids, node ids, host names, roles
    std::size_t addresses_max = 64;    ///< interfaces one node may name
    std::size_t node_sizes_max = 64;   ///< sizes that --nnodes may list; it travels in each join
    std::size_t text_bytes_max = std::size_t{1} << 20;  ///< read of a script or a list of hosts
    /// of several ddprun of a node for the first, and at its end for late ones: a slow home folder
    Milliseconds task_patience{30000};
    Milliseconds clean_end_timeout{5000};  ///< ddprun's end waits so long for --log-keep

    // Nodes beside each other.
    /// hashed of a program's file at its beginning, and as much at its end: 3 ms of a cold disk
    std::size_t program_hash_bytes_max = std::size_t{4} << 20;
    std::size_t version_text_bytes_max = 16384;  ///< read of torch/version.py, nccl.h, pyvenv.cfg
    Milliseconds peer_pause{250};           ///< between two attempts of ddpctl doctor at a node
    std::size_t peer_hello_bytes_max = 64;  ///< of a line that ddpctl doctors say to each other
    /// connections to one ddpctl doctor besides those expected; strangers use up no descriptors
    std::size_t peer_strangers_max = 64;

    // Failing and ending.
    Milliseconds unkillable_after{10000};     ///< SIGKILL sent and still there: given up
    Milliseconds stop_slack{5000};            ///< on top of grace and unkillable_after, for a node
    Milliseconds signal_death_patience{100};  ///< a worker's SIGTERM waits this long for our own
    Milliseconds second_interrupt_after{1000};  ///< an earlier second Ctrl-C is the same one
    int restart_burst_max = 10;                 ///< starts per restart_burst_window without pause
    Milliseconds restart_burst_window{60000};   ///< restart_burst_max counts over this long
    Milliseconds restart_backoff{5000};         ///< first pause once the burst is used up, doubled
    Milliseconds restart_backoff_max{60000};    ///< its longest; a generation this long resets it
    int quarantine_after = 3;                   ///< failures that a node began, within the window
    Milliseconds quarantine_window{600000};     ///< quarantine_after counts over this long
    Milliseconds quarantine_cooldown{600000};   ///< the node is left out so long if others suffice
    /// that an operator may hold the next generation, or leave a node out: a day
    Milliseconds operator_for_max{86400000};
    std::size_t orders_max = 64;           ///< of operators, that wait for their answer
    int same_failures_said = 3;            ///< in a row, before any step: then it is said
    std::size_t failures_kept_max = 64;    ///< reports kept of one generation
    std::size_t failures_shown_max = 32;   ///< ranks in the report's table; it counts the others
    std::size_t timeline_events_max = 48;  ///< of the summary; the middle is dropped first

    // Leaving in time.
    /// of a deadline: for killing who stayed, the proof and the goodbye; half of a shorter one
    Milliseconds leave_reserve{3000};
    Milliseconds drain_ask_every{5000};      ///< a metadata server has no events; AWS advises this
    Milliseconds drain_ask_timeout{2000};    ///< one request to it; it is a hop away
    Milliseconds drain_look_every{5000};     ///< at a file where inotify cannot see it appear
    Milliseconds drain_command_every{5000};  ///< between two runs of a drain command
    std::size_t drain_text_bytes_max = 65536;  ///< of a notice: an answer, a file, what is printed
    Milliseconds requeue_timeout{30000};       ///< one question to scontrol; a busy one is slow

    // Durability.
    std::size_t record_bytes_max = std::size_t{64} << 20;  ///< of one run in the journal
    /// in records of one run that nothing waits for: those of more nodes are written less often
    int nodes_recorded_per_second_max = 10'000;
    Milliseconds journal_timeout{1000};      ///< a write that takes longer is waited for no more
    std::size_t journal_answers_max = 1024;  ///< writes of one run that a hung journal holds
    int journal_crashes_max = 3;      ///< a journal that the daemon died on so often is set aside
    Milliseconds leader_lease{2000};  ///< of etcd's leader key; etcd grants no less
    std::size_t parked_max = 16384;   ///< agents that a daemon without a leader holds
    Milliseconds etcd_timeout{1000};  ///< one request to one etcd
    /// a leader holds back what waits for a record that etcd does not take, then goes on without:
    /// above leader_lease, so that one which is cut off from etcd leads no more by then
    Milliseconds etcd_record_patience{3000};
    /// written to etcd by one leader between two compactions of its history
    std::size_t etcd_history_bytes_max = std::size_t{512} << 10;

    // Evidence and output.
    std::size_t stderr_tail_bytes_max = std::size_t{64} << 10;  ///< kept per stream of a worker
    /// of each stream's last words, in the verdict: some dozens of whole lines
    std::size_t report_tail_bytes_max = std::size_t{16} << 10;
    std::size_t report_text_bytes_max = std::size_t{4} << 10;  ///< of a path in the verdict
    std::size_t cause_bytes_max = 1024;  ///< of a restart, in the summary: it is kept for each
    std::size_t failure_cause_bytes_max = 200;  ///< of each of several failed ranks, in the report
    std::size_t error_file_bytes_max = std::size_t{64} << 10;    ///< read of a worker's error file
    std::size_t console_line_bytes_max = std::size_t{64} << 10;  ///< longer lines are cut in pieces
    std::size_t console_backlog_bytes_max = std::size_t{256} << 10;  ///< then workers wait
    Milliseconds fold_within{200};       ///< equal lines of ranks are one on a terminal
    std::size_t folded_lines_max = 256;  ///< wait for those of other ranks; then the oldest do not
    Milliseconds prompt_after{100};  ///< an unfinished line, not growing, is shown on a terminal
    std::size_t bar_rows_max = 32;   ///< of one stream at the foot of a terminal; more are lines
    std::size_t escape_bytes_max = 4096;  ///< of a control sequence; what does not end so is none
    std::size_t terminal_bytes_max = std::size_t{1} << 20;  ///< read of one that was left
    /// typed or pasted to a worker that does not read; what comes beyond it is lost, as in
    /// terminals
    std::size_t typed_bytes_max = std::size_t{1} << 20;
    std::size_t say_lines_max = 1024;      ///< own lines that wait for a stopped console
    Milliseconds evidence_timeout{2000};   ///< a disk that hangs longer costs the last words
    Milliseconds explain_every{1000};      ///< waiting nodes get the reason, when it changes
    Milliseconds explain_gather{100};      ///< least time between two reasons, for very many nodes
    std::size_t strangers_named_max = 16;  ///< addresses that were turned away before they joined
    Milliseconds say_waiting_after{2000};  ///< the first explanation of a wait on the console
    Milliseconds say_waiting_every{5000};  ///< between two explanations of one wait

    // Worker store. Its clients are authenticated by nothing but their address.
    std::size_t store_key_bytes_max = 8192;                    ///< one key, as PyTorch
    std::size_t store_value_bytes_max = std::size_t{8} << 20;  ///< one value, as PyTorch
    std::size_t store_keys_per_request_max = 131072;           ///< of one multi-key operation
    /// One request as a whole, so also what one client has sent of one; COMPARE_SET needs 16 MiB.
    std::size_t store_request_bytes_max = std::size_t{64} << 20;
    /// Buffers of incomplete requests, all clients together: 64 of the largest values.
    std::uint64_t store_partial_bytes_max = std::uint64_t{512} << 20;
    /// Bytes that one client's WAIT may take: 131,072 names of 250 bytes.
    std::size_t store_wait_bytes_max = std::size_t{64} << 20;
    /// Bytes that all clients' WAITs take: 4,000 clients that each wait for 4,000 names.
    std::uint64_t store_waits_bytes_max = std::uint64_t{512} << 20;
    std::uint64_t store_bytes_max = std::uint64_t{16} << 30;  ///< keys, values, queues together
    std::size_t store_clients_max = 65536;                    ///< connections at once
    /// clients behind relays, which need no connection: 16,384 nodes of 64 workers
    std::size_t store_relayed_max = std::size_t{1} << 20;
    std::size_t store_reply_bytes_max = std::size_t{256} << 20;  ///< queued for one slow reader
    /// Copies of replies that all slow readers together leave unread; big values are not copied.
    std::uint64_t store_unread_bytes_max = std::uint64_t{2} << 30;
    Milliseconds store_stall_timeout{60000};    ///< a begun request, a reader who reads nothing
    std::size_t store_adopted_max = 65536;      ///< handed over and not yet taken: all clients
    std::size_t store_refusals_named_max = 64;  ///< addresses; others are only counted
    std::size_t store_earlier_addresses_max = 65536;  ///< of earlier generations, remembered

    // Hangs.
    Milliseconds hang_timeout_min{1000};  ///< the least that --hang-timeout may be
    Milliseconds gpu_look_timeout{5000};  ///< one check of GPUs; a driver may never answer
    Milliseconds stacks_timeout{2000};    ///< for the stacks of a node's workers to be saved
    std::size_t stacks_bytes_max = std::size_t{16} << 20;  ///< of one worker; of its flight record

    // GPU memory that is waited for.
    Milliseconds gpu_start_timeout{60000};  ///< the driver's library; it may have to wake all GPUs
    Milliseconds gpu_memory_timeout{4000};  ///< for ended workers' memory; below stop_slack
    /// bytes above the first look that still count as freed; a CUDA context has more
    std::uint64_t gpu_memory_slack = std::uint64_t{64} << 20;

    // Events of a run, and who watches them.
    std::size_t events_kept_max = 4096;  ///< of one run, for who asks; its file has the older ones
    std::size_t events_kept_bytes_max = std::size_t{1} << 20;  ///< of them together
    std::size_t event_text_bytes_max = 4096;                   ///< of each text in an event
    std::size_t events_waiting_max = 4096;  ///< for a slow disk; then the file goes without some
    std::uint64_t events_file_bytes_max = std::uint64_t{64} << 20;  ///< of one run: years of it
    std::size_t restarts_kept_max = 64;  ///< of one run, each with its phases; the newest
    std::size_t restarts_shown_max = 5;  ///< of these, at the job's end; report.json has all
    std::size_t watchers_max = 1024;  ///< admitted over HTTP, here; of all other machines as many
    std::size_t http_header_bytes_max = 8192;  ///< of one request
    std::size_t http_body_bytes_max = 4096;    ///< of what an operator asks for; no other has one
    std::size_t http_batch_bytes_max = std::size_t{64} << 10;  ///< of events, in one write
    /// for a request to be whole, and for a watcher to take what it was sent; then it is dropped
    Milliseconds http_timeout{10000};
    Milliseconds run_answer_timeout{5000};  ///< a ddprun that ddpctl asks; it may be stopped
    std::size_t run_answer_bytes_max = std::size_t{16} << 20;  ///< of its whole status

    // Output of workers that readers get through the rendezvous.
    /// readers of logs or stacks that one daemon serves at once (HTTP requests); also readers that
    /// one node serves at once for its daemon, and as many on the socket of its run: on a node each
    /// reader is a `ddpctl` process
    std::size_t readers_max = 16;
    std::size_t read_piece_bytes_max = std::size_t{16} << 10;  ///< one message of a node; lines too
    std::size_t read_piece_bytes_min = 1024;  ///< the same where many nodes are read at once
    /// what all nodes together have sent for one reader that has not taken it: one piece of each
    std::size_t read_waiting_bytes_max = std::size_t{16} << 20;
    std::size_t read_pattern_bytes_max = 1024;  ///< of a regular expression
    Milliseconds read_answer_timeout{10000};    ///< of a node, in turn; then the next one is read
    /// at the end of a job, for who follows to get the last lines
    Milliseconds read_end_timeout{2000};

    // Notices to people (--notify).
    std::size_t notices_waiting_max = 64;     ///< for a slow command or URL; the oldest are dropped
    int notice_attempts_max = 3;              ///< of each notice
    Milliseconds notice_timeout{10000};       ///< one attempt
    Milliseconds notice_pause{1000};          ///< before the second attempt, then doubled
    Milliseconds notices_end_timeout{15000};  ///< ddprun's end waits so long for the last ones
    std::size_t notice_answer_bytes_max = 65536;  ///< read of what a URL answers

    // Warm starts.
    /// workers that report neither imports nor steps run so long before standbys for the next ones
    /// are prepared: past their first steps
    Milliseconds standby_after{5000};
    /// workers that report imports have imported nothing for so long before that; workers that
    /// report steps are asked for the first step as often
    Milliseconds standby_quiet{1000};
    /// workers that report steps may take so long for the first before they are taken to be past
    /// it
    Milliseconds standby_first_step_max{60000};
    /// names of modules that a worker has imported; in one message to a standby, with room for more
    std::size_t standby_imports_bytes_max = std::size_t{48} << 10;
    /// of memory, what a standby is taken to need until one was measured: torch and _dynamo, twice
    std::uint64_t standby_memory_guess = std::uint64_t{600} << 20;
    int standby_memory_reserve = 10;  ///< percent of the memory that stay free beside standbys
    /// memory is short when a task has waited for it so long within memory_stall_window
    Milliseconds memory_stall{200};
    /// the kernel's own bounds are 0.5 and 10 s; who is not root may have multiples of 2 s only
    Milliseconds memory_stall_window{2000};
    /// one standby's imports; from a shared file system `import torch` takes a minute
    Milliseconds standby_ready_timeout{180000};
    Milliseconds standby_go_timeout{1000};  ///< it is told its place and does not go on: killed
    int standby_failures_max = 3;  ///< of a slot's standbys in a row; then it has none any more
    /// one message to or from a standby: names of modules, or what its worker finds set
    std::size_t standby_message_bytes_max = std::size_t{64} << 10;
};

}  // namespace ddprun
