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
#include "rendezvous/wire/codec.hpp"

namespace ddprun::rdzv {

namespace {

namespace http = boost::beast::http;

const HttpWay kHere{.is_on_this_machine = true};
const HttpWay kStranger{.is_on_this_machine = false};
const HttpWay kOwner{};

/// The rest of the input is the body. An order needs the operators' token, except from the owner of
/// a run's socket; a page of another site cannot give one in the owner's name.
void check_order(const http::request_header<http::fields>& head, std::string_view body) {
    const Limits limits;
    JobSecret::Bytes secret{};
    const HttpAccess nobody{.token = std::nullopt, .hostname = "gpu-01"};
    const HttpAccess operators{
        .token = std::nullopt, .operator_secret = JobSecret(secret, "fuzz"), .hostname = "gpu-01"};
    DDP_CHECK(!judge_order(head, kHere, nobody, limits), "an order without operators");
    if (judge_order(head, kOwner, operators, limits)) {
        const auto origin = head[http::field::origin];
        DDP_CHECK(head[http::field::content_type].starts_with("application/json"), "no JSON");
        DDP_CHECK(origin.empty() || origin == "http://" + std::string(head[http::field::host]),
                  "an order from another site");
    }
    const Result<OperatorOrder> order = judge_order(head, kHere, operators, limits);
    if (order) {
        DDP_CHECK(head.find(http::field::authorization) != head.end(), "without a token");
    }
    const OperatorOrder asked = order ? *order : OperatorOrder{.job = JobId("job")};
    const Result<OperatorOrder> whole =
        parse_order_body(asked, body.substr(0, limits.http_body_bytes_max), limits);
    if (whole) {
        DDP_CHECK(whole->job == asked.job && whole->action == asked.action, "another order");
        const Result<OperatorOrder> sent = decode<OperatorOrder>(encode(*whole), limits);
        // A job's name comes from the path: it may not be UTF-8, and then no job has it.
        DDP_CHECK(sent && sent->node == whole->node && sent->duration == whole->duration,
                  "the wire does not take it");
    }
}

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
    check_order(parser.get(), bytes);
    // A stranger is never answered; a program of this machine only if it named the machine.
    const HttpAccess access{.token = std::nullopt, .hostname = "gpu-01"};
    const auto& head = parser.get();
    DDP_CHECK(!judge(head, kStranger, access), "a stranger was answered");
    JobSecret::Bytes secret{};
    const HttpAccess hidden{.token = JobSecret(secret, "fuzz"), .hostname = {}, .has_tls = true};
    DDP_CHECK(!judge(head, kStranger, hidden) && !judge_order(head, kStranger, hidden, limits),
              "a stranger was answered in clear");
    const Result<WatchRequest> here = judge(head, kHere, access);
    const Result<WatchRequest> owner = judge(head, kOwner, access);
    DDP_CHECK(!here || owner, "who has to ask for permission got more");
    if (here) {
        DDP_CHECK(head.find(http::field::host) != head.end(), "no host was named");
        const std::string site(head["Sec-Fetch-Site"]);
        DDP_CHECK(here->what == WatchRequest::What::Page || site.empty() || site == "none" ||
                      site == "same-origin",
                  "a page of another site was answered");
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
