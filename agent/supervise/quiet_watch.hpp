#pragma once

#include <optional>

#include "agent/contract/signs_of_life.hpp"
#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

/// Decides whether the workers of this node hang, as far as it alone can know: none of them has
/// shown a sign of life for the hang timeout. Checks them every so often. A check late by more than
/// its interval begins anew: this process was held up then, and its workers perhaps too.
///
/// GPUs are checked last, and only when nothing else shows life: that takes longer.
///
/// The timeout is what the settings say or, where it is to be learned, ten times the longest quiet
/// stretch of this node that was none, and at least five minutes. A learned timeout stays for later
/// generations.
class QuietWatch {
public:
    explicit QuietWatch(const rdzv::JobSettings& settings);

    /// Workers start: the first sign of life.
    void begin(Instant now);

    /// No worker is left to watch.
    void end();

    [[nodiscard]] std::optional<Instant> next_look() const { return next_look_; }

    /// True, once, when it is time to look.
    [[nodiscard]] bool take_due_look(Instant now);

    /// A sign of life that no look would find. True if is_quiet() has changed.
    [[nodiscard]] bool show_life(Instant now);

    /// Takes the signs of that look, with `workers` that still run. True if is_quiet() has changed:
    /// the quiet is over; that it begins needs take_gpus().
    [[nodiscard]] bool take(Instant now, const SignsOfLife& seen, int workers);

    /// True, once until take_gpus(), when nothing but the use of GPUs is left to be checked.
    [[nodiscard]] bool take_due_gpu_look(Instant now);

    /// Takes the result of that check of the GPUs. True if is_quiet() has changed.
    [[nodiscard]] bool take_gpus(Instant now, bool are_used);

    [[nodiscard]] bool is_quiet() const { return is_quiet_; }

    /// Since the last sign of life.
    [[nodiscard]] Duration quiet_for(Instant now) const { return now - alive_at_; }

    /// The worker as it was seen last.
    [[nodiscard]] WorkerSeen worker(LocalRank local_rank) const;

    /// How long is too long.
    [[nodiscard]] Duration timeout() const;

private:
    [[nodiscard]] bool is_on() const { return is_learned_ || fixed_timeout_ > Duration::zero(); }
    [[nodiscard]] Duration interval() const;
    [[nodiscard]] bool shows_life(Instant now, const SignsOfLife& seen, int workers) const;

    Duration fixed_timeout_;
    bool is_learned_;
    Duration longest_stretch_{};  ///< without a sign of life, and then there was one
    std::optional<Instant> next_look_;
    Instant looked_at_{};
    Instant alive_at_{};
    SignsOfLife last_;
    bool is_looking_at_gpus_ = false;
    bool is_quiet_ = false;
};

}  // namespace ddprun::agent
