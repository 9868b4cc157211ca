#include <unistd.h>

#include "launcher/ctl/show_logs.hpp"
#include "launcher/ctl/verbs/verbs.hpp"

namespace ddprun::launcher {

/// An agent runs it (WorkersReaders) for those who read logs through the rendezvous.
Action declare_node_logs(CLI::App& verb) {
    const auto question = std::make_shared<LogsQuestion>();
    question->until_fd = STDIN_FILENO;
    verb.add_option("--run", question->run)->required();
    verb.add_option("--host", question->host)->required();
    verb.add_option("--line-bytes", question->line_bytes_max);
    verb.add_option("--rank", question->ranks)->check(at_least(0));
    verb.add_flag("--follow", question->follows);
    verb.add_option("--lines", question->last_lines);
    verb.add_option("--grep", question->pattern);
    verb.add_option("--generation", question->generation);
    return [question] {
        // The agent sends one stream, whose lines must be whole.
        return exit_code(show_logs(*question, stdout, stdout));
    };
}

}  // namespace ddprun::launcher
