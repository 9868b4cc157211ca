#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/limits.hpp"
#include "base/tagged.hpp"
#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/journal/journal.hpp"

namespace ddprun::rdzv {

/// Where a daemon's runs are kept, and what a record that cannot be written means.
struct Durable {
    Journal* journal = nullptr;  ///< none: nothing is kept
    /// Nothing is told that could not be written: another daemon may be deciding by now. Else the
    /// run goes on without its record, and says so.
    bool is_strict = false;
};

struct RecorderHooks {
    std::function<void(const Effect&)> carry_out;
    std::function<std::string()> record;  ///< of the run as it is now; empty: nothing to keep
    /// Records reach the journal no more, or again if empty. Called on change.
    std::function<void(const std::string& fault)> durability;
};

/// Carries out a coordinator's effects in order, those after an awaited record only when it is
/// durable. Acknowledgements wait for nothing: a slow disk costs no lease. A record that failed is
/// written again, as it is by then, until one is taken. Lives on the thread of `io`.
class Recorder : public std::enable_shared_from_this<Recorder> {
public:
    Recorder(boost::asio::io_context& io, JobId job, const Limits& limits, Durable durable,
             RecorderHooks hooks);

    void take(Effects effects);

    /// Nothing that waits is carried out any more and no hook is called.
    void stop();

private:
    void hold(std::vector<Effect> effects);
    void persist(bool is_awaited);
    void write();
    void written(std::uint64_t number, const Result<void>& result);
    void limit_wait();
    void give_up();
    void try_again();
    void tell(const std::string& fault);
    void release();

    JobId job_;
    Limits limits_;
    Durable durable_;
    RecorderHooks hooks_;
    boost::asio::steady_timer patience_;
    boost::asio::steady_timer retry_;
    std::uint64_t asked_ = 0;     ///< writes that were begun
    std::uint64_t answered_ = 0;  ///< the newest of them that is over
    std::uint64_t gate_ = 0;      ///< what comes now waits for this write
    std::uint64_t open_ = 0;      ///< what waits for this one and earlier may go
    bool is_outdated_ = false;    ///< the run has changed since the last write was begun
    std::deque<std::pair<std::uint64_t, Effect>> held_;
    std::string fault_;
    bool is_releasing_ = false;
    bool is_stopped_ = false;
};

}  // namespace ddprun::rdzv
