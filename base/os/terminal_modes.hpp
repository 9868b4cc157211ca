#pragma once

#include <termios.h>

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace ddprun {

/// How a terminal treats what is typed and shown, as `stty -a` lists it. Values of one build and
/// one machine.
class TerminalModes {
public:
    /// Reads the terminal `fd`; if `fd` is the other end of a pseudo-terminal, the worker's end.
    [[nodiscard]] static Result<TerminalModes> of(int fd);

    /// The inverse of to_bytes(); failure is BadMessage.
    [[nodiscard]] static Result<TerminalModes> from_bytes(std::string_view bytes);
    [[nodiscard]] std::string to_bytes() const;

    /// The terminal `fd` has them from now on, for what is not read yet too. Waits for nothing.
    [[nodiscard]] Result<void> apply(int fd) const;

    /// These, but bytes pass as they are in both directions.
    [[nodiscard]] TerminalModes as_raw() const;

    /// These, which are raw, but a read returns at once, with the bytes that have come.
    [[nodiscard]] TerminalModes without_wait() const;

    /// A line feed that is written becomes a carriage return and a line feed.
    [[nodiscard]] bool adds_returns() const;

    [[nodiscard]] const termios& values() const { return modes_; }

    /// Compares flags and keys; speeds aside.
    bool operator==(const TerminalModes& other) const;

private:
    termios modes_{};
};

}  // namespace ddprun
