#pragma once

#include "agent/output/window_size.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"

namespace ddprun::agent {

/// A pseudo-terminal that carries bytes as they are, in both directions: no echo, no signals, no
/// line editing, no added carriage returns. Both ends are close-on-exec, and nobody's controlling
/// terminal by being opened here.
struct PseudoTerminal {
    UniqueFd ours;     ///< the master, non-blocking
    UniqueFd workers;  ///< the slave
};

/// `maker`: the multiplexer, /dev/ptmx. The error says what was missing.
[[nodiscard]] Result<PseudoTerminal> open_pseudo_terminal(const char* maker,
                                                          const WindowSize& window);

[[nodiscard]] bool is_terminal(int fd);

/// All zero where `fd` is no terminal, or does not know.
[[nodiscard]] WindowSize window_of(int fd);

/// `fd`: either end of a pseudo-terminal.
void set_window(int fd, const WindowSize& window);

}  // namespace ddprun::agent
