#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/compose.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>

#include "rendezvous/transport/tls.hpp"

namespace ddprun::rdzv {

/// A connected socket that HTTP is spoken on, in clear or inside TLS whose handshake is over: an
/// AsyncStream for Asio and Beast, which outlives its operations. One thread; at most one read and
/// one write are under way.
class HttpStream {
public:
    using Socket = boost::asio::generic::stream_protocol::socket;
    using executor_type = Socket::executor_type;

    /// `tls`: null: none. `seen`: what was read of it already.
    explicit HttpStream(Socket socket, std::unique_ptr<TlsChannel> tls = nullptr,
                        std::string seen = {})
        : socket_(std::move(socket)), tls_(std::move(tls)), seen_(std::move(seen)) {}

    [[nodiscard]] executor_type get_executor() { return socket_.get_executor(); }

    /// For closing and waiting.
    [[nodiscard]] Socket& socket() { return socket_; }
    [[nodiscard]] bool has_tls() const { return tls_ != nullptr; }

    /// TLS's closing bytes, to be sent on socket(); empty: there is none.
    [[nodiscard]] std::string last_words();

    /// Why TLS has failed, for people; empty: it has not.
    [[nodiscard]] const std::string& why_failed() const { return why_failed_; }

    template <typename Buffers, typename Token>
    auto async_read_some(const Buffers& buffers, Token&& token) {
        return boost::asio::async_compose<Token, void(boost::system::error_code, std::size_t)>(
            ReadSome<Buffers>(*this, buffers), token, socket_);
    }

    template <typename Buffers, typename Token>
    auto async_write_some(const Buffers& buffers, Token&& token) {
        return boost::asio::async_compose<Token, void(boost::system::error_code, std::size_t)>(
            WriteSome<Buffers>(*this, buffers), token, socket_);
    }

private:
    static constexpr std::size_t kPieceBytes = 16384;  ///< of one record of TLS

    /// Base of both operations: never completes before the caller has returned.
    class Operation {
    public:
        explicit Operation(HttpStream& stream) : stream_(stream) {}

    protected:
        template <typename Self>
        void finish(Self& self, boost::system::error_code failure, std::size_t count) {
            if (std::exchange(has_waited_, true)) {
                self.complete(failure, count);
                return;
            }
            failure_ = failure;
            count_ = count;
            is_done_ = true;
            boost::asio::post(stream_.socket_.get_executor(), std::move(self));
        }

        HttpStream& stream_;
        boost::system::error_code failure_;
        std::size_t count_ = 0;
        bool has_begun_ = false;
        bool has_waited_ = false;
        bool is_done_ = false;
    };

    template <typename Buffers>
    class ReadSome : public Operation {
    public:
        ReadSome(HttpStream& stream, const Buffers& buffers)
            : Operation(stream), buffers_(buffers) {}

        template <typename Self>
        void operator()(Self& self, boost::system::error_code failure = {}, std::size_t read = 0) {
            if (this->is_done_) {
                self.complete(this->failure_, this->count_);
                return;
            }
            HttpStream& stream = this->stream_;
            this->has_waited_ = std::exchange(this->has_begun_, true);
            if (!stream.tls_) {
                if (this->has_waited_) {
                    self.complete(failure, read);
                    return;
                }
                const Buffers buffers = buffers_;
                stream.socket_.async_read_some(buffers, std::move(self));
                return;
            }
            if (this->has_waited_) {
                stream.arrived(failure, read);
            }
            std::size_t count = 0;
            if (!failure) {
                failure = stream.reveal(boost::asio::buffer(first(buffers_)), count);
            }
            if (failure || count > 0 || boost::asio::buffer_size(buffers_) == 0) {
                this->finish(self, failure, count);
                return;
            }
            stream.hidden_.resize(kPieceBytes);
            stream.socket_.async_read_some(boost::asio::buffer(stream.hidden_), std::move(self));
        }

    private:
        static boost::asio::mutable_buffer first(const Buffers& buffers) {
            const auto end = boost::asio::buffer_sequence_end(buffers);
            const auto found =
                std::find_if(boost::asio::buffer_sequence_begin(buffers), end,
                             [](const boost::asio::mutable_buffer& one) { return one.size() > 0; });
            return found == end ? boost::asio::mutable_buffer()
                                : boost::asio::mutable_buffer(*found);
        }

        Buffers buffers_;
    };

    template <typename Buffers>
    class WriteSome : public Operation {
    public:
        WriteSome(HttpStream& stream, const Buffers& buffers)
            : Operation(stream), buffers_(buffers) {}

        template <typename Self>
        void operator()(Self& self, boost::system::error_code failure = {}, std::size_t sent = 0) {
            if (this->is_done_) {
                self.complete(this->failure_, this->count_);
                return;
            }
            HttpStream& stream = this->stream_;
            this->has_waited_ = std::exchange(this->has_begun_, true);
            if (this->has_waited_) {
                // The peer cannot read a record that was sent in part.
                const std::size_t count = stream.tls_ ? (failure ? 0 : this->count_) : sent;
                self.complete(failure, count);
                return;
            }
            if (!stream.tls_) {
                const Buffers buffers = buffers_;
                stream.socket_.async_write_some(buffers, std::move(self));
                return;
            }
            std::string piece(std::min(boost::asio::buffer_size(buffers_), kPieceBytes), '\0');
            this->count_ = boost::asio::buffer_copy(boost::asio::buffer(piece), buffers_);
            failure = stream.hide(piece);
            if (failure) {
                this->finish(self, failure, 0);
                return;
            }
            boost::asio::async_write(stream.socket_, boost::asio::buffer(stream.sending_),
                                     std::move(self));
        }

    private:
        Buffers buffers_;
    };

    /// `read` bytes of hidden_, unless that failed.
    void arrived(const boost::system::error_code& failure, std::size_t read);
    /// Decrypts whole records that have arrived into `to`; `count` 0: there is none.
    [[nodiscard]] boost::system::error_code reveal(boost::asio::mutable_buffer to,
                                                   std::size_t& count);
    /// To sending_.
    [[nodiscard]] boost::system::error_code hide(const std::string& text);
    [[nodiscard]] boost::system::error_code failed(const Error& why);

    Socket socket_;
    std::unique_ptr<TlsChannel> tls_;
    std::string seen_;
    std::string hidden_;   ///< what is read into
    std::string sending_;  ///< what is written from
    std::string why_failed_;
};

}  // namespace ddprun::rdzv
