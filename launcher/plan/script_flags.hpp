#pragma once

#include <string>
#include <vector>

#include "launcher/plan/program.hpp"
#include "launcher/surroundings/surroundings.hpp"

namespace ddprun::launcher {

/// The argument that gives a program its local rank. To argparse --local-rank and --local_rank are
/// different flags: a script whose text has only the second gets that.
[[nodiscard]] std::string local_rank_argument(ProgramMode mode, const std::string& program,
                                              const Surroundings& surroundings);

/// A warning about flags of ddprun that stand behind the program, `words[0]`, and so are its
/// arguments. Empty: there are none, or a script's text has them, or they are words that many
/// programs have for themselves.
[[nodiscard]] std::string misplaced_flags(ProgramMode mode, const std::vector<std::string>& words,
                                          const Surroundings& surroundings);

}  // namespace ddprun::launcher
