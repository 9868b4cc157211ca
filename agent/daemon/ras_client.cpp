#include "agent/daemon/ras_client.hpp"

#include <chrono>
#include <cstdint>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include "base/os/unix_time.hpp"
#include "base/whole_number.hpp"

namespace ddprun::agent {

std::optional<boost::asio::ip::tcp::endpoint> ras_endpoint(
    const std::optional<std::string>& nccl_ras_addr) {
    const std::string text = nccl_ras_addr.value_or("localhost:28028");
    const std::size_t colon = text.rfind(':');
    if (colon == std::string::npos) {
        return std::nullopt;
    }
    std::string host = text.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
        host = host.substr(1, host.size() - 2);
    }
    boost::system::error_code failure;
    const auto address =
        boost::asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, failure);
    const auto port = whole_number<std::uint16_t>(std::string_view(text).substr(colon + 1));
    if (failure || !port || *port == 0) {
        return std::nullopt;
    }
    return boost::asio::ip::tcp::endpoint(address, *port);
}

RasClient::RasClient(boost::asio::io_context& io, const WatchLimits& limits)
    : io_(io),
      limits_(limits),
      // An older RAS refuses the format, and answers in words.
      words_(fmt::format(
          "CLIENT PROTOCOL 2\nTIMEOUT {}\nSET FORMAT json\nVERBOSE STATUS\n",
          std::chrono::duration_cast<std::chrono::seconds>(limits.ras_timeout).count() / 2)),
      deadline_(io, [this] { finish(question_, std::nullopt); }) {}

void RasClient::ask(const boost::asio::ip::tcp::endpoint& endpoint, OnAnswer on_answer) {
    cancel();
    on_answer_ = std::move(on_answer);
    question_ = std::make_shared<Question>(io_);
    const auto question = question_;
    deadline_.set(clock_now() + limits_.ras_timeout);
    question->socket.async_connect(endpoint, [this, question](boost::system::error_code failure) {
        if (failure) {
            finish(question, std::nullopt);
        } else if (question == question_) {
            send(question);
        }
    });
}

void RasClient::send(const std::shared_ptr<Question>& question) {
    boost::asio::async_write(
        question->socket, boost::asio::buffer(words_),
        [this, question](boost::system::error_code failure, std::size_t /*size*/) {
            if (failure) {
                finish(question, std::nullopt);
            } else if (question == question_) {
                read(question);
            }
        });
}

/// It ends the connection after its answer.
void RasClient::read(const std::shared_ptr<Question>& question) {
    boost::asio::async_read(
        question->socket,
        boost::asio::dynamic_buffer(question->received, limits_.ras_answer_bytes_max),
        [this, question](boost::system::error_code failure, std::size_t /*size*/) {
            const bool is_whole = failure == boost::asio::error::eof;
            finish(question,
                   is_whole ? std::optional(std::move(question->received)) : std::nullopt);
        });
}

void RasClient::finish(const std::shared_ptr<Question>& question,
                       std::optional<std::string> answer) {
    if (question != question_) {
        return;
    }
    cancel();
    std::exchange(on_answer_, nullptr)(std::move(answer));
}

void RasClient::cancel() {
    if (const auto question = std::exchange(question_, nullptr)) {
        deadline_.set(std::nullopt);
        boost::system::error_code ignored;
        question->socket.close(ignored);
    }
}

}  // namespace ddprun::agent
