#include <algorithm>
#include <array>
#include <optional>

#include "base/os/own_variable.hpp"
#include "launcher/ctl/give_orders.hpp"
#include "launcher/ctl/local_runs.hpp"
#include "launcher/ctl/verbs/verbs.hpp"
#include "rendezvous/http/order_request.hpp"
#include "rendezvous/transport/secret_file.hpp"
#include "rendezvous/wire/control_fields.hpp"

namespace ddprun::launcher {

namespace {

using rdzv::OperatorAction;
using rdzv::OperatorReply;

struct OrderFlags {
    ConnectionOptions connection;
    std::string log_dir;
    bool wants_json = false;
    OperatorAction action = OperatorAction::Restart;
    std::string node;
    std::string time;
    int nodes = 0;
};

/// Turns the flags into an order for `job`.
Result<rdzv::OperatorOrder> read_order(const OrderFlags& flags, const std::string& job) {
    rdzv::OperatorOrder order{.job = JobId(job),
                              .action = flags.action,
                              .node = flags.node,
                              .duration = Milliseconds(0),
                              .nodes = flags.nodes,
                              .by = who_asks()};
    if (!flags.time.empty()) {
        const std::optional<Milliseconds> time = parse_time(flags.time);
        if (!time) {
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("--for {}: write a time like 90, 90s, 10m or 2h", flags.time)};
        }
        order.duration = *time;
    }
    return order;
}

Result<OperatorReply> give_there(const OrderFlags& flags, const std::string& job) {
    if (job.empty()) {
        return Error{ErrorCode::InvalidArgument,
                     "which job? Name it with --rdzv-id; ddpctl status lists them"};
    }
    const std::string file = operator_secret_file(flags.connection);
    if (file.empty()) {
        return Error{ErrorCode::InvalidArgument,
                     "orders need --operator-secret-file FILE, the one that the rendezvous was "
                     "started with; the secret of the nodes is not enough"};
    }
    const Result<rdzv::OperatorOrder> order = read_order(flags, job);
    if (!order) {
        return order.error();
    }
    const Result<RendezvousAsked> asked =
        read_rendezvous(flags.connection, log_dir_of(flags.log_dir), job);
    if (!asked) {
        return asked.error();
    }
    const Result<rdzv::JobSecret> secret = rdzv::load_secret(file);
    if (!secret) {
        return secret.error();
    }
    return give_to_rendezvous(*asked, *secret, *order);
}

/// To a run on this machine.
Result<OperatorReply> give_here(const OrderFlags& flags, const std::string& wanted) {
    const Result<ChosenJob> chosen =
        choose_job({.log_dir = log_dir_of(flags.log_dir), .name = wanted});
    if (!chosen) {
        return Error{chosen.error().code,
                     chosen.error().what + "; to a rendezvous with --operator-secret-file FILE"};
    }
    const std::string& run = chosen->folders.front();
    const Result<std::string> job = job_of_run(run);
    if (!job) {
        return job.error();
    }
    const Result<rdzv::OperatorOrder> order = read_order(flags, *job);
    return order ? give_to_run(run, *order) : order.error();
}

int give_order(const OrderFlags& flags) {
    const ConnectionOptions& connection = flags.connection;
    const std::string job = connection.job.empty() ? own_variable("PET_RDZV_ID") : connection.job;
    const bool is_for_rendezvous = !connection.endpoints.empty() ||
                                   !own_variable("PET_RDZV_ENDPOINT").empty() ||
                                   !operator_secret_file(connection).empty();
    const Result<OperatorReply> reply =
        is_for_rendezvous ? give_there(flags, job) : give_here(flags, job);
    if (!reply) {
        return is_for_rendezvous ? complain(reply.error()) : complain_of_run(reply.error());
    }
    const bool is_taken = reply->fault == rdzv::OrderFault::None;
    if (flags.wants_json) {
        fmt::print("{}", rdzv::order_answer(*reply));
    } else if (is_taken) {
        fmt::print("{} (event {})\n", reply->text, reply->event);
    } else {
        fmt::print(stderr, "ddpctl: {}\n", reply->text);
    }
    if (is_taken) {
        return kExitSuccess;
    }
    return reply->fault == rdzv::OrderFault::Invalid ? int{kExitUsage} : kExitNo;
}

/// The notes that the help of each order adds to its summary.
constexpr std::array<std::pair<OperatorAction, const char*>, 8> kNotes = {{
    {OperatorAction::Drain,
     "Without a spare the other nodes go on if they suffice. The node's ddprun exits\n"
     "with 75. It joins again if it is started again: quarantine keeps it out."},
    {OperatorAction::Restart, "It uses up none of --max-restarts."},
    {OperatorAction::Hold, "Workers that run are left alone. A second hold sets the time anew."},
    {OperatorAction::Release, "Without NODE it ends a hold."},
    {OperatorAction::Quarantine,
     "If the others suffice, the workers of a running node save and go on without it."},
    {OperatorAction::Grow, "N is one of the sizes that --nnodes allows."},
    {OperatorAction::Shrink, "N is one of the sizes that --nnodes allows."},
    {OperatorAction::Stop, "Every ddprun of the job exits with 98."},
}};

}  // namespace

Action declare_order(CLI::App& verb) {
    const auto note = std::find_if(kNotes.begin(), kNotes.end(), [&verb](const auto& one) {
        return word_of(one.first, rdzv::kOperatorActionNames) == verb.get_name();
    });
    const OperatorAction action = note->first;
    const auto flags = std::make_shared<OrderFlags>();
    flags->action = action;
    std::string example;
    const bool is_about_node =
        action == OperatorAction::Drain || action == OperatorAction::Quarantine;
    if (is_about_node || action == OperatorAction::Release) {
        verb.add_option("NODE", flags->node, "its id or its host's name, as status shows them")
            ->required(is_about_node);
        example += " gpu-07";
    }
    if (action == OperatorAction::Grow || action == OperatorAction::Shrink) {
        verb.add_option("N", flags->nodes, "number of nodes")->required()->check(at_least(1));
        example += " 4";
    }
    if (action == OperatorAction::Hold || action == OperatorAction::Quarantine) {
        const bool is_hold = action == OperatorAction::Hold;
        add_value(
            verb, "--for", "TIME", flags->time,
            is_hold ? "90, 90s, 10m or 2h; at most a day" : "90, 90s, 10m or 2h; default: 10m")
            ->required(is_hold);
        example += " --for 1h";
    }
    add_job(
        verb, flags->connection.job,
        "the job, or here a run that jobs shows; default: $PET_RDZV_ID, else the only one here");
    add_endpoint(verb, flags->connection, "$PET_RDZV_ENDPOINT, else the job on this machine");
    add_operator_secret(verb, flags->connection);
    add_tls(verb, flags->connection);
    add_log_dir(verb, flags->log_dir);
    verb.add_flag("--json", flags->wants_json, "the answer as JSON");
    verb.footer(fmt::format(R"(
{0}
A rendezvous takes orders from those who hold the operators' secret. Without a
secret and --rdzv-endpoint the order goes to the job on this machine. Each order
is an event `operator` of the job, with who asked.

example:
  ddpctl {1}{2} --rdzv-endpoint head:29400 --rdzv-id llama \
      --operator-secret-file ops
)",
                            note->second, verb.get_name(), example));
    return [flags] { return give_order(*flags); };
}

}  // namespace ddprun::launcher
