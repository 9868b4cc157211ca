#include "agent/output/typed_keys.hpp"

#include <csignal>

#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::agent {

namespace {

constexpr int kInterruptsThatEnd = 3;

bool ended_by(int wanted, std::optional<int> exit_code, std::optional<int> signal) {
    // Programs that catch the signal to clean up exit as a shell would say it.
    return signal == wanted || exit_code == kExitSignalBase + wanted;
}

}  // namespace

void TypedKeys::begin() {
    in_a_row_ = 0;
    was_interrupted_ = false;
    was_quit_ = false;
}

Typed TypedKeys::type(Instant now, const SignalKeys& keys, bool is_interrupt_ours,
                      std::string_view bytes) {
    Typed typed;
    for (const char key : bytes) {
        if (key == keys.suspend) {
            typed.suspends = true;
        } else if (key != keys.interrupt) {
            was_quit_ = was_quit_ || key == keys.quit;
            typed.passed += key;
        } else if (is_interrupt_ours || takes_interrupt(now, typed)) {
            ++typed.interrupts;
        } else {
            was_interrupted_ = true;
            typed.passed += key;
        }
    }
    return typed;
}

bool TypedKeys::takes_interrupt(Instant now, Typed& typed) {
    in_a_row_ = in_a_row_ > 0 && now - last_interrupt_ <= together_ ? in_a_row_ + 1 : 1;
    last_interrupt_ = now;
    is_ending_ = is_ending_ || in_a_row_ >= kInterruptsThatEnd;
    typed.is_hint_due = !is_ending_ && in_a_row_ == kInterruptsThatEnd - 1;
    return is_ending_;
}

int TypedKeys::cause_of(std::optional<int> exit_code, std::optional<int> signal) const {
    if (was_interrupted_ && ended_by(SIGINT, exit_code, signal)) {
        return SIGINT;
    }
    return was_quit_ && ended_by(SIGQUIT, exit_code, signal) ? SIGQUIT : 0;
}

}  // namespace ddprun::agent
