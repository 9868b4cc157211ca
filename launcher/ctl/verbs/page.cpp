#include "agent/output/run_folder.hpp"
#include "agent/output/run_socket.hpp"
#include "base/os/machine_identity.hpp"
#include "launcher/ctl/ended_page.hpp"
#include "launcher/ctl/local_runs.hpp"
#include "launcher/ctl/verbs/verbs.hpp"

namespace ddprun::launcher {

namespace {

struct PageOptions {
    RunWanted wanted{.takes_ended = true};
};

/// Says where the page of a run at work is.
std::string place_of_page(const std::string& folder) {
    const std::optional<agent::RunNote> note = agent::read_run_note(folder);
    if (note && !note->rendezvous.empty()) {
        return fmt::format("its rendezvous has the page: http://{}/",
                           note->rendezvous.substr(0, note->rendezvous.find(',')));
    }
    return fmt::format(
        "its page is on its socket: ssh -L 8080:{}/{} {}, then http://localhost:8080/", folder,
        agent::kRunSocketName, host_name());
}

int show_page(const PageOptions& options) {
    RunWanted wanted = options.wanted;
    wanted.log_dir = log_dir_of(wanted.log_dir);
    const Result<ChosenJob> chosen = choose_job(wanted);
    if (!chosen) {
        return complain_of_run(chosen.error());
    }
    const std::string& folder = chosen->folders.front();
    if (chosen->is_at_work) {
        return complain_of_run(
            {ErrorCode::NotFound, fmt::format("{} is at work: {}", folder, place_of_page(folder))});
    }
    if (!agent::read_run_note(folder)) {
        return complain_of_run(
            {ErrorCode::NotFound,
             fmt::format("{} has no run.json: it is no folder of a run", folder)});
    }
    return exit_code(serve_ended_page(folder, [&folder](std::uint16_t port) {
        fmt::print("http://127.0.0.1:{}/\n", port);
        std::fflush(stdout);
        fmt::print(
            stderr,
            "ddpctl: the page of {}, until Ctrl-C; from elsewhere: ssh -L {}:127.0.0.1:{} {}\n",
            folder, port, port, host_name());
    }));
}

}  // namespace

Action declare_page(CLI::App& verb) {
    const auto options = std::make_shared<PageOptions>();
    add_run(verb, options->wanted.name);
    add_node(verb, options->wanted.node);
    add_log_dir(verb, options->wanted.log_dir);
    verb.footer(R"(
It shows the last state of the ranks of one node, the events and the ends of the
logs, from the run's folder, to this user only. While a job is at work its
rendezvous has the page.

example:
  ddpctl page llama
)");
    return [options] { return show_page(*options); };
}

}  // namespace ddprun::launcher
