#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/instant.hpp"

namespace ddprun::agent {

/// The keys that a terminal makes signals of, in its present modes. An unset key makes no signal.
struct SignalKeys {
    std::optional<char> interrupt;
    std::optional<char> quit;
    std::optional<char> suspend;
};

/// The outcome of typed bytes.
struct Typed {
    std::string passed;        ///< for the worker's terminal
    int interrupts = 0;        ///< for ddprun itself: as so many Ctrl-C of its own terminal
    bool suspends = false;     ///< ddprun is to be stopped, as Ctrl-Z stops programs
    bool is_hint_due = false;  ///< the next interrupt, if it comes at once, is for ddprun
};

/// Decides what is done with the keys that a user types while a worker has ddprun's terminal.
/// All go to the worker, whose terminal makes signals of some, but for
///
/// * the third interrupt (Ctrl-C) in a row, each within `together` of the one before: the worker
///   does not end by it, and its user wants the end; this one and all later ones are ddprun's;
/// * suspend (Ctrl-Z): it is ddprun that the user's shell knows.
///
/// Pure.
class TypedKeys {
public:
    explicit TypedKeys(Duration together) : together_(together) {}

    /// Another worker has the terminal from now on.
    void begin();

    /// `is_interrupt_ours`: the worker is asked by ddprun to save and leave, and needs no signal.
    [[nodiscard]] Typed type(Instant now, const SignalKeys& keys, bool is_interrupt_ours,
                             std::string_view bytes);

    /// The signal of a key by which the worker that ended like this was ended, as its user wanted:
    /// SIGINT or SIGQUIT. 0: it ended otherwise.
    [[nodiscard]] int cause_of(std::optional<int> exit_code, std::optional<int> signal) const;

private:
    [[nodiscard]] bool takes_interrupt(Instant now, Typed& typed);

    Duration together_;
    Instant last_interrupt_{};
    int in_a_row_ = 0;
    bool is_ending_ = false;  ///< interrupts are ddprun's
    bool was_interrupted_ = false;
    bool was_quit_ = false;
};

}  // namespace ddprun::agent
