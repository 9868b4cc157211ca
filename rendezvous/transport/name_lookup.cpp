#include "rendezvous/transport/name_lookup.hpp"

#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace ddprun::rdzv {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

struct NameLookup::Question {
    Question(asio::io_context& io, std::string name)
        : host(std::move(name)), resolver(io), answered(io) {}

    const std::string host;
    tcp::resolver resolver;
    asio::steady_timer answered;  ///< cancelled when the answer has come, or no caller waits for it
    bool is_done = false;
    Answer answer;
};

asio::awaitable<NameLookup::Answer> NameLookup::resolve(std::string host, Instant until) {
    Answer given;
    const asio::ip::address address = asio::ip::make_address(host, given.failure);
    if (!given.failure) {
        given.addresses.push_back(address);
        co_return given;
    }
    if (!last_ || last_->is_done || last_->host != host) {
        last_ = std::make_shared<Question>(io_, std::move(host));
        last_->resolver.async_resolve(
            last_->host, "", [question = last_](error_code why, const auto& results) {
                question->is_done = true;
                question->answer.failure = why;
                for (const auto& result : results) {
                    question->answer.addresses.push_back(result.endpoint().address());
                }
                question->answered.cancel();
            });
    }
    const std::shared_ptr<Question> question = last_;
    question->answered.expires_at(until);
    const auto [woken] =
        co_await question->answered.async_wait(asio::as_tuple(asio::use_awaitable));
    static_cast<void>(woken);  // is_done says it
    if (question->is_done && question == last_) {
        given = question->answer;
    } else {
        given.failure = asio::error::timed_out;
    }
    co_return given;
}

void NameLookup::cancel() {
    if (const auto question = std::exchange(last_, nullptr)) {
        question->resolver.cancel();
        question->answered.cancel();
    }
}

}  // namespace ddprun::rdzv
