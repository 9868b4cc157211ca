#pragma once

#include <optional>

#include "agent/output/window_size.hpp"
#include "base/os/terminal_modes.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"

namespace ddprun::agent {

/// Both ends are close-on-exec, and opening them here makes neither a controlling terminal.
struct PseudoTerminal {
    UniqueFd ours;     ///< the master, non-blocking
    UniqueFd workers;  ///< the slave
};

/// `maker`: the multiplexer, /dev/ptmx. `modes`: none for one that carries bytes as they are, in
/// both directions: no echo, no signals, no line editing, no added carriage returns. The error says
/// what was missing.
[[nodiscard]] Result<PseudoTerminal> open_pseudo_terminal(
    const char* maker, const WindowSize& window, const std::optional<TerminalModes>& modes = {});

[[nodiscard]] bool is_terminal(int fd);

/// Whether a line feed that is written to the terminal `fd` stays in its column: a program has made
/// it raw. False for what is no terminal.
[[nodiscard]] bool needs_returns(int fd);

/// All zero where `fd` is no terminal, or does not know.
[[nodiscard]] WindowSize window_of(int fd);

/// `fd`: either end of a pseudo-terminal.
void set_window(int fd, const WindowSize& window);

}  // namespace ddprun::agent
