#pragma once

#include <string>
#include <vector>

#include "launcher/ctl/jobs_text.hpp"
#include "rendezvous/client/control_client.hpp"

namespace ddprun::launcher {

/// All that can be asked on this machine without a name.
struct StatusHere {
    struct Heard {
        std::string place;  ///< for --rdzv-endpoint
        rdzv::ControlAnswer answer;
    };
    std::vector<Heard> rendezvous;
    std::vector<JobHere> runs;  ///< of which no rendezvous has told
};

[[nodiscard]] bool has_jobs(const StatusHere& here);

/// The jobs of each rendezvous behind a line that names it, but for the only one if it is
/// `usual`, which needs no name; then the runs.
[[nodiscard]] std::string status_here_text(const StatusHere& here, const std::string& usual);

/// One line: what a rendezvous answers, with the jobs of all, in each of which `rendezvous` is
/// where it was asked, and with `runs`, as their ddpruns answer.
[[nodiscard]] std::string status_here_json(const StatusHere& here);

}  // namespace ddprun::launcher
