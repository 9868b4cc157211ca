#include "launcher/run/local_link.hpp"

#include <utility>
#include <variant>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "rendezvous/core/coordinator.hpp"

namespace ddprun::launcher {

namespace {

const ConnectionId kOnlyConnection{1};

}  // namespace

class LocalLink::Impl : public std::enable_shared_from_this<LocalLink::Impl> {
public:
    Impl(boost::asio::io_context& io, JobId job, Limits limits, Rng rng)
        : io_(io),
          timer_(io),
          coordinator_(std::move(job), {.limits = limits, .has_leases = false}, rng) {}

    void start(rdzv::LinkEvents events) {
        events_ = std::move(events);
        is_running_ = true;
        boost::asio::post(io_, [self = shared_from_this()] {
            if (self->is_running_) {
                self->events_.on_up("127.0.0.1", {});
            }
        });
    }

    void feed(const rdzv::Input& input) {
        if (!is_running_) {
            return;
        }
        rdzv::Effects effects;
        coordinator_.step(std::chrono::steady_clock::now(), input, effects);
        // Nothing of it is recorded: nothing waits for a record.
        for (rdzv::Effect& effect : effects.now) {
            if (rdzv::Send* send = std::get_if<rdzv::Send>(&effect)) {
                deliver(std::move(send->message));
            }
        }
        arm();
    }

    void stop(std::function<void()> done) {
        is_running_ = false;
        timer_.cancel();
        boost::asio::post(io_, std::move(done));
    }

private:
    void deliver(rdzv::RendezvousMessage message) {
        boost::asio::post(io_, [self = shared_from_this(), message = std::move(message)]() mutable {
            if (self->is_running_) {
                self->events_.on_message(std::move(message));
            }
        });
    }

    void arm() {
        const std::optional<Instant> deadline = coordinator_.next_deadline();
        if (!deadline) {
            timer_.cancel();
            return;
        }
        timer_.expires_at(*deadline);
        timer_.async_wait([self = shared_from_this()](boost::system::error_code failure) {
            if (!failure) {
                self->feed(rdzv::Tick{});
            }
        });
    }

    boost::asio::io_context& io_;
    boost::asio::steady_timer timer_;
    rdzv::Coordinator coordinator_;
    rdzv::LinkEvents events_;
    bool is_running_ = false;
};

LocalLink::LocalLink(boost::asio::io_context& io, JobId job, Limits limits, Rng rng)
    : impl_(std::make_shared<Impl>(io, std::move(job), limits, rng)) {}

LocalLink::~LocalLink() = default;

void LocalLink::start(rdzv::LinkEvents events) {
    impl_->start(std::move(events));
}

void LocalLink::send(const rdzv::AgentMessage& message) {
    impl_->feed(rdzv::Received{kOnlyConnection, message});
}

void LocalLink::drop(const std::string& /*why*/) {
    // Nothing to end: the coordinator is in this process, and no beats are wanted.
}

void LocalLink::stop(std::function<void()> done) {
    impl_->stop(std::move(done));
}

}  // namespace ddprun::launcher
