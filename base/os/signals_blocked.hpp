#pragma once

#include <csignal>

#include "base/check.hpp"

namespace ddprun {

/// All signals blocked for this thread while it lives, and for threads that begin meanwhile for
/// good: signals are for the thread that supervises. And between fork and exec a child must neither
/// lose a signal that is meant for it nor run our handlers.
class SignalsBlocked {
public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        const int error = pthread_sigmask(SIG_SETMASK, &all, &before_);
        DDP_CHECK(error == 0, error);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

private:
    sigset_t before_;
};

}  // namespace ddprun
