#pragma once

#include <functional>
#include <map>
#include <string>

#include "base/result.hpp"
#include "base/tagged.hpp"

namespace ddprun::rdzv {

/// Keeps the newest record of each run beyond the death of the daemon. A record is what encode()
/// made of a RunRecord; the journal does not look inside. Lives on the thread of the loop that it
/// was made with, and calls back there, never before the call that started it has returned.
class Journal {
public:
    using Written = std::function<void(const Result<void>&)>;

    virtual ~Journal() = default;

    /// Replaces the record of `job`. `written` is called once: the record is on stable storage and
    /// outlives this process and the machine's power, or what failed, with the object and what to
    /// do. A record that waits is superseded by a later one of the same job; both are answered when
    /// the later one is written.
    virtual void write(const JobId& job, std::string record, Written written) = 0;

    /// The run of `job` is over and told: nothing of it needs to be kept.
    virtual void erase(const JobId& job) = 0;
};

}  // namespace ddprun::rdzv
