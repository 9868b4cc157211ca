// Goal: no request holds up or crashes who answers over HTTP, and who must not be answered is not.
// Method: the input is what a socket gives, in pieces, to the parser and the judge of the server.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>

#include "base/check.hpp"
#include "base/limits.hpp"
#include "rendezvous/http/request_head.hpp"

namespace ddprun::rdzv {

namespace {

namespace http = boost::beast::http;

void ask(std::string_view bytes, std::size_t piece) {
    const Limits limits;
    http::request_parser<http::empty_body> parser;
    parser.header_limit(static_cast<std::uint32_t>(limits.http_header_bytes_max));
    parser.eager(true);
    std::string waiting;
    while (!bytes.empty() && !parser.is_done()) {
        waiting += bytes.substr(0, piece);
        bytes.remove_prefix(std::min(piece, bytes.size()));
        boost::system::error_code failure;
        const std::size_t taken = parser.put(boost::asio::buffer(waiting), failure);
        waiting.erase(0, taken);
        if (failure && failure != http::error::need_more) {
            return;
        }
    }
    if (!parser.is_header_done()) {
        return;
    }
    // A stranger is never answered; a program of this machine only if it named the machine.
    const HttpAccess access{.token = std::nullopt, .hostname = "gpu-01"};
    const auto& head = parser.get();
    DDP_CHECK(!judge(head, false, access), "a stranger was answered");
    const Result<WatchRequest> here = judge(head, true, access);
    const Result<WatchRequest> owner = judge(head, std::nullopt, access);
    DDP_CHECK(!here || owner, "who has to ask for permission got more");
    if (here) {
        DDP_CHECK(head.find(http::field::host) != head.end(), "no host was named");
        DDP_CHECK(here->job == owner->job && here->from == owner->from, owner->job);
    }
}

}  // namespace

}  // namespace ddprun::rdzv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) {
        return 0;
    }
    const std::size_t piece = 1 + data[0] % 64;
    const char* text = static_cast<const char*>(static_cast<const void*>(data + 1));
    ddprun::rdzv::ask({text, size - 1}, piece);
    return 0;
}
