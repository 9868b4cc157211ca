#pragma once

#include "launcher/ctl/verbs/verb.hpp"

/// The verbs, a file each. Each function declares the options of its verb, which the returned
/// action holds.
namespace ddprun::launcher {

[[nodiscard]] Action declare_status(CLI::App& verb);
[[nodiscard]] Action declare_jobs(CLI::App& verb);
[[nodiscard]] Action declare_events(CLI::App& verb);
[[nodiscard]] Action declare_stacks(CLI::App& verb);
[[nodiscard]] Action declare_report(CLI::App& verb);
[[nodiscard]] Action declare_page(CLI::App& verb);
[[nodiscard]] Action declare_logs(CLI::App& verb);
[[nodiscard]] Action declare_node_logs(CLI::App& verb);
[[nodiscard]] Action declare_runs(CLI::App& verb);
[[nodiscard]] Action declare_checkpoints(CLI::App& verb);
[[nodiscard]] Action declare_clean(CLI::App& verb);
[[nodiscard]] Action declare_doctor(CLI::App& verb);
[[nodiscard]] Action declare_token(CLI::App& verb);
[[nodiscard]] Action declare_help(CLI::App& verb);

/// Declares any verb that has the name of an order in rdzv::kOperatorActionNames.
[[nodiscard]] Action declare_order(CLI::App& verb);

}  // namespace ddprun::launcher
