// The messages between a worker and ddprun-memory, as text and over a socket.

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/support/catch.hpp"
#include "worker_runtime/memory/protocol.hpp"

using namespace ddprun;
using worker::MemoryFile;
using worker::MemoryReply;
using worker::MemoryRequest;
using worker::MemoryVerb;

namespace {

const std::string kSum = "0123456789abcdef0123456789abcdef";

std::array<UniqueFd, 2> socket_pair() {
    std::array<int, 2> ends{};
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
    return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

bool is_request(const std::string& text) {
    return worker::decode_memory_request(text).has_value();
}

bool is_reply(const std::string& text) {
    return worker::decode_memory_reply(text).has_value();
}

std::string begin_of(const std::string& files) {
    return fmt::format(R"({{"verb":"begin","files":[{}]}})", files);
}

}  // namespace

TEST_CASE("a request of the memory comes back as it was") {
    MemoryRequest request;
    request.verb =
        GENERATE(MemoryVerb::Hello, MemoryVerb::Partner, MemoryVerb::Begin, MemoryVerb::Written,
                 MemoryVerb::Seal, MemoryVerb::List, MemoryVerb::Open, MemoryVerb::Fetch);
    request.rank = 7;
    request.key = {.generation = Generation(3), .step = std::int64_t{1} << 62, .save = 5};
    request.endpoint = "[::1]:99";
    request.files = {MemoryFile{"model-00001-of-00002.safetensors", 5, kSum},
                     MemoryFile{"manifest.json", 0, ""}};
    const Result<MemoryRequest> back = worker::decode_memory_request(encode(request));
    REQUIRE(back.has_value());
    CHECK(back->verb == request.verb);
    CHECK(back->rank == 7);
    CHECK(back->key == request.key);
    CHECK(back->endpoint == request.endpoint);
    CHECK(back->files == request.files);
}

TEST_CASE("a reply of the memory comes back as it was") {
    MemoryReply reply;
    reply.error = Error{ErrorCode::LimitExceeded, "no \"memory\" for €"};
    reply.note = "partner is gone";
    reply.endpoint = "127.0.0.1:5";
    reply.steps = {{.key = {.generation = Generation(1), .step = 2, .save = 3},
                    .is_sealed = true,
                    .files = {MemoryFile{"a", 1, kSum}}},
                   {.key = {.generation = Generation(2)}, .is_sealed = false, .files = {}}};
    const Result<MemoryReply> back = worker::decode_memory_reply(encode(reply));
    REQUIRE(back.has_value());
    CHECK(back->error->code == ErrorCode::LimitExceeded);
    CHECK(back->error->what == reply.error->what);
    CHECK(back->note == reply.note);
    CHECK(back->endpoint == reply.endpoint);
    REQUIRE(back->steps.size() == 2);
    CHECK(back->steps[0].key == reply.steps[0].key);
    CHECK(back->steps[0].is_sealed);
    CHECK(back->steps[0].files == reply.steps[0].files);
    CHECK(back->steps[1].key == reply.steps[1].key);
}

TEST_CASE("every code of an error travels") {
    for (int code = 0; code <= static_cast<int>(ErrorCode::System); ++code) {
        MemoryReply reply;
        reply.error = Error{static_cast<ErrorCode>(code), "x\xff"};
        const Result<MemoryReply> back = worker::decode_memory_reply(encode(reply));
        REQUIRE(back.has_value());
        CHECK(back->error->code == reply.error->code);
    }
}

TEST_CASE("a request of the memory with anything unknown or impossible is refused") {
    REQUIRE(is_request(begin_of(R"({"name":"a","size":1})")));
    CHECK_FALSE(is_request(""));
    CHECK_FALSE(is_request("[]"));
    CHECK_FALSE(is_request("{}"));
    CHECK_FALSE(is_request(R"({"verb":"dance"})"));
    CHECK_FALSE(is_request(R"({"verb":1})"));
    CHECK_FALSE(is_request(R"({"verb":"list","more":1})"));
    CHECK_FALSE(is_request(R"({"verb":"list","verb":"list"})"));
    CHECK_FALSE(is_request(R"({"verb":"hello","rank":-1})"));
    CHECK_FALSE(is_request(R"({"verb":"hello","rank":4294967296})"));
    CHECK_FALSE(is_request(R"({"verb":"hello","rank":1.5})"));
    CHECK_FALSE(is_request(R"({"verb":"seal","step":9223372036854775808})"));
    CHECK_FALSE(is_request(R"({"verb":"begin","files":{}})"));
    CHECK_FALSE(is_request(begin_of("1")));
    CHECK_FALSE(is_request(begin_of(R"({"name":"a","size":"1"})")));
    CHECK_FALSE(is_request(begin_of(R"({"name":"a","size":1,"mode":1})")));
    CHECK_FALSE(is_request(begin_of(R"({"name":"a","size":1},{"name":"a","size":1})")));
    CHECK_FALSE(is_request(begin_of(R"({"name":"../a","size":1})")));
    CHECK_FALSE(is_request(begin_of(R"({"name":".a","size":1})")));
    CHECK_FALSE(is_request(begin_of(R"({"name":"","size":1})")));
    CHECK_FALSE(is_request(begin_of(R"({"name":"a","size":1,"xxh3_128":"short"})")));
    CHECK_FALSE(
        is_request(begin_of(fmt::format(R"({{"name":"{}","size":1}})", std::string(201, 'a')))));
    constexpr const char* kLarge = R"({"name":"a","size":9223372036854775807},)";
    CHECK_FALSE(is_request(begin_of(std::string(kLarge) + R"({"name":"b","size":1})")));
}

TEST_CASE("a reply of the memory with anything unknown or impossible is refused") {
    REQUIRE(is_reply("{}"));
    CHECK_FALSE(is_reply(R"({"error":"no"})"));
    CHECK_FALSE(is_reply(R"({"error":{"code":"no","what":"x"}})"));
    CHECK_FALSE(is_reply(R"({"error":{"code":"system","what":1}})"));
    CHECK_FALSE(is_reply(R"({"steps":[1]})"));
    CHECK_FALSE(is_reply(R"({"steps":[{"generation":1,"step":1,"is_sealed":1,"files":[]}]})"));
    CHECK_FALSE(is_reply(R"({"steps":[{"generation":1,"step":1,"files":[1]}]})"));
    CHECK_FALSE(is_reply(R"({"note":1})"));
    CHECK_FALSE(is_reply(fmt::format(R"({{"note":"{}"}})", std::string(1 << 17, 'x'))));
}

TEST_CASE("a packet brings its descriptors, close-on-exec") {
    const auto [left, right] = socket_pair();
    std::array<int, 2> pipe_ends{};
    REQUIRE(pipe2(pipe_ends.data(), O_CLOEXEC) == 0);
    const UniqueFd reads(pipe_ends[0]);
    const UniqueFd writes(pipe_ends[1]);
    REQUIRE(worker::send_packet(left.get(), "{}", {writes.get()}).has_value());
    Result<worker::MemoryPacket> got = worker::receive_packet(right.get());
    REQUIRE(got.has_value());
    CHECK(got->text == "{}");
    REQUIRE(got->descriptors.size() == 1);
    CHECK((fcntl(got->descriptors[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
    REQUIRE(write(got->descriptors[0].get(), "x", 1) == 1);
    char byte = 0;
    REQUIRE(read(reads.get(), &byte, 1) == 1);
    CHECK(byte == 'x');
}

TEST_CASE("a packet over its bounds is neither sent nor taken") {
    const auto [left, right] = socket_pair();
    const std::string large(worker::kMemoryPacketBytesMax + 1, 'x');
    const std::vector<int> many(worker::kMemoryDescriptorsMax + 1, left.get());
    CHECK(worker::send_packet(left.get(), large, {}).error().code == ErrorCode::LimitExceeded);
    CHECK(worker::send_packet(left.get(), "{}", many).error().code == ErrorCode::LimitExceeded);
    REQUIRE(send(left.get(), large.data(), large.size(), 0) > 0);
    CHECK(worker::receive_packet(right.get()).error().code == ErrorCode::BadMessage);
    const std::string fits(worker::kMemoryPacketBytesMax, 'x');
    REQUIRE(worker::send_packet(left.get(), fits, {}).has_value());
    CHECK(worker::receive_packet(right.get())->text == fits);
}

TEST_CASE("the end of the other side is a lost connection in both directions") {
    auto [left, right] = socket_pair();
    right.reset();
    CHECK(worker::receive_packet(left.get()).error().code == ErrorCode::ConnectionLost);
    CHECK(worker::send_packet(left.get(), "{}", {}).error().code == ErrorCode::ConnectionLost);
}
