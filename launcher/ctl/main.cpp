#include <array>
#include <csignal>
#include <exception>
#include <memory>

#include <CLI/CLI.hpp>

#include "launcher/ctl/verbs/help.hpp"
#include "launcher/ctl/verbs/verbs.hpp"
#include "launcher/plan/help.hpp"

namespace {

using namespace ddprun::launcher;

struct Verb {
    const char* name;
    const char* group;    ///< of the help; empty: in none
    const char* summary;  ///< a line
    Action (*declare)(CLI::App& verb);
};

constexpr const char* kRuns = "jobs and runs";
constexpr const char* kHere = "this machine";
constexpr const char* kOrders = "orders to a job";

constexpr std::array kVerbs = {
    Verb{"status", kRuns, "Show how jobs stand at a rendezvous, or a run here", declare_status},
    Verb{"jobs", kRuns, "List the runs of this user at work on this machine", declare_jobs},
    Verb{"events", kRuns, "Show what happened in a run", declare_events},
    Verb{"stacks", kRuns, "Show where the workers of a job are now", declare_stacks},
    Verb{"report", kRuns, "Print the report of a run, or pack what helps into a file",
         declare_report},
    Verb{"page", kRuns, "Serve the page of a run that is over, from its folder", declare_page},
    Verb{"logs", kHere, "Show what workers wrote, on this node or on all", declare_logs},
    Verb{"runs", kHere, "List the runs in this node's log folder", declare_runs},
    Verb{"checkpoints", kHere, "List the checkpoints in a folder, or verify every byte",
         declare_checkpoints},
    Verb{"clean", kHere, "Remove runs that are over from the log folder", declare_clean},
    Verb{"doctor", kHere, "Look for what is wrong with this machine", declare_doctor},
    Verb{"drain", kOrders, "A node saves and leaves for good; a spare replaces it", declare_order},
    Verb{"restart", kOrders, "The workers save and start anew", declare_order},
    Verb{"hold", kOrders, "No generation starts before a time is over", declare_order},
    Verb{"release", kOrders, "End a hold, or a node's quarantine", declare_order},
    Verb{"quarantine", kOrders, "Leave a node out while others suffice", declare_order},
    Verb{"grow", kOrders, "Use up to N nodes; spares are taken at once", declare_order},
    Verb{"shrink", kOrders, "Use at most N nodes; the others wait as spares", declare_order},
    Verb{"stop", kOrders, "The workers save, and the job is over", declare_order},
    Verb{"token", kOrders, "Print the bearer token of orders over HTTP", declare_token},
    Verb{"node-logs", "", "", declare_node_logs},
    Verb{"help", "", "Show the verbs, or the options of one", declare_help},
};

constexpr const char* kFooter =
    R"(
environment: PET_RDZV_ENDPOINT, PET_LOG_DIR, PET_RDZV_ID (orders alone),
DDPRUN_SECRET_FILE and DDPRUN_OPERATOR_SECRET_FILE stand in for their options.

exit codes:
  0   answered; the order was taken
  1   no such job, run, node, generation, rank or checkpoint; an order that is
      impossible now; doctor: something is bad; clean: something is left;
      checkpoints: one is damaged
  2   a flag or file that cannot be used
  69  no rendezvous answers there, or none of several leads
)";

}  // namespace

int main(int argc, char** argv) {
    std::signal(SIGPIPE, SIG_IGN);
    CLI::App app("", "ddpctl");
    app.formatter(std::make_shared<Help>());
    app.footer(kFooter);
    app.set_version_flag("--version", [] {
        std::string text = version_text();
        text.pop_back();  // CLI11 adds a line end.
        return text;
    });
    app.require_subcommand(1);
    Action action;
    for (const Verb& verb : kVerbs) {
        CLI::App* const declared = app.add_subcommand(verb.name, verb.summary)->group(verb.group);
        declared->footer("");
        declared->final_callback([&action, run = verb.declare(*declared)] { action = run; });
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& success) {
        return app.exit(success);
    } catch (const CLI::ParseError& error) {
        return complain({ddprun::ErrorCode::InvalidArgument, explain(app, error)});
    }
    try {
        return action();
    } catch (const std::exception& failure) {  // of a file that another program wrote
        return complain({ddprun::ErrorCode::InvalidArgument, failure.what()});
    }
}
