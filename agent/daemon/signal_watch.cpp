#include "agent/daemon/signal_watch.hpp"

#include <utility>

#include <fmt/format.h>

namespace ddprun::agent {

SignalWatch::SignalWatch(boost::asio::io_context& io, std::function<void(int)> on_signal)
    : signals_(io), on_signal_(std::move(on_signal)) {}

void SignalWatch::start(const std::vector<int>& signals,
                        const std::function<void(const std::string&)>& say) {
    for (const int signal : signals) {
        boost::system::error_code failure;
        signals_.add(signal, failure);
        if (failure) {
            say(fmt::format("warning: signal {} cannot be handled: {}", signal, failure.message()));
        }
    }
    wait();
}

void SignalWatch::stop() {
    signals_.cancel();
    signals_.clear();
}

void SignalWatch::wait() {
    signals_.async_wait([this](boost::system::error_code failure, int signal) {
        if (!failure) {
            wait();
            on_signal_(signal);
        }
    });
}

}  // namespace ddprun::agent
