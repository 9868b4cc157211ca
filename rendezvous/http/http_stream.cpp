#include "rendezvous/http/http_stream.hpp"

#include <cstring>
#include <string_view>

#include <boost/system/errc.hpp>

namespace ddprun::rdzv {

using boost::system::error_code;

void HttpStream::arrived(const error_code& failure, std::size_t read) {
    if (!failure) {
        tls_->feed(std::string_view(hidden_.data(), read));
    }
    hidden_ = {};  // A follower may read nothing for hours.
}

error_code HttpStream::reveal(boost::asio::mutable_buffer to, std::size_t& count) {
    if (!seen_.empty()) {
        count = std::min(seen_.size(), to.size());
        std::memcpy(to.data(), seen_.data(), count);
        seen_.erase(0, count);
        return {};
    }
    const Result<std::size_t> read = tls_->read(static_cast<char*>(to.data()), to.size());
    if (!read) {
        return failed(read.error());
    }
    count = *read;
    return {};
}

error_code HttpStream::hide(const std::string& text) {
    const Result<void> written = tls_->write(text);
    sending_ = tls_->take_output();
    return written ? error_code() : failed(written.error());
}

error_code HttpStream::failed(const Error& why) {
    why_failed_ = why.what;
    return make_error_code(boost::system::errc::protocol_error);
}

std::string HttpStream::last_words() {
    if (!tls_ || !why_failed_.empty() || !socket_.is_open()) {
        return {};
    }
    tls_->say_end();
    return tls_->take_output();
}

}  // namespace ddprun::rdzv
