#pragma once

#include <string>

#include "rendezvous/wire/control.hpp"

namespace ddprun::launcher {

/// The jobs as people read them: what each waits for comes first, then its budgets, its nodes as a
/// table, and its last events. Ends with a line end. Control characters of foreign texts are
/// replaced, for they would reach a terminal.
[[nodiscard]] std::string status_text(const rdzv::StatusReply& reply);

}  // namespace ddprun::launcher
