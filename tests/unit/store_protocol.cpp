#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.hpp"
#include "rendezvous/store/protocol/request.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/store_requests.hpp"

namespace ddprun::rdzv::store_test {

namespace {

const Limits kLimits;

/// Splits `stream`, which arrives in pieces that end at `cuts`, and returns the requests, then the
/// refusal if there is one.
std::vector<std::string> split_in_pieces(const std::string& stream,
                                         const std::vector<std::size_t>& cuts) {
    RequestSplitter splitter(kLimits);
    std::vector<std::string> found;
    std::size_t begin = 0;
    for (const std::size_t arrived : cuts) {
        while (true) {
            const Result<std::size_t> size =
                splitter.split(std::string_view(stream).substr(begin, arrived - begin));
            if (!size) {
                found.push_back("REFUSED " + size.error().what);
                return found;
            }
            if (*size == 0) {
                break;
            }
            found.push_back(stream.substr(begin, *size));
            begin += *size;
        }
    }
    return found;
}

std::string random_text(Rng& rng, std::uint64_t length_max) {
    std::string bytes(rng.below(length_max + 1), ' ');
    for (char& value : bytes) {
        value = static_cast<char>(rng.below(256));
    }
    return bytes;
}

std::string random_request(Rng& rng) {
    const std::string key = random_text(rng, 20);
    const std::string other = random_text(rng, 20);
    const std::string value = random_text(rng, rng.chance(1, 20) ? 5000 : 30);
    const auto code = StoreOpcode{static_cast<std::uint8_t>(1 + rng.below(18))};
    switch (code) {
        case StoreOpcode::CompareSet:
            return compare_set(key, other, value);
        case StoreOpcode::Add:
        case StoreOpcode::Barrier:
            return of_number(code, key, static_cast<std::int64_t>(rng.next()));
        case StoreOpcode::Check:
        case StoreOpcode::Wait:
        case StoreOpcode::MultiGet:
            return rng.chance(1, 4) ? of_keys(code, {}) : of_keys(code, {key, other, key});
        case StoreOpcode::MultiSet:
            return rng.chance(1, 4) ? multi_set({}) : multi_set({{key, value}, {other, key}});
        case StoreOpcode::GetNumKeys:
        case StoreOpcode::CancelWait:
        case StoreOpcode::ListKeys:
            return opcode(code);
        case StoreOpcode::Ping:
            return ping(static_cast<std::uint32_t>(rng.next()));
        case StoreOpcode::Set:
        case StoreOpcode::Append:
        case StoreOpcode::QueuePush:
            return of_value(code, key, value);
        default:
            return of_key(code, key);
    }
}

std::string refusal_of(const std::string& bytes) {
    RequestSplitter splitter(kLimits);
    REQUIRE(splitter.split(validate()).value() == 5);
    const Result<std::size_t> size = splitter.split(bytes);
    return size ? "" : size.error().what;
}

}  // namespace

TEST_CASE("requests are found whatever pieces they arrive in") {
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
        CAPTURE(seed);
        Rng rng(seed);
        std::vector<std::string> requests{validate()};
        std::string stream = validate();
        const std::uint64_t count = rng.below(20);
        for (std::uint64_t index = 0; index < count; ++index) {
            requests.push_back(random_request(rng));
            stream += requests.back();
        }
        std::vector<std::size_t> every_byte;
        std::vector<std::size_t> somewhere;
        for (std::size_t at = 1; at <= stream.size(); ++at) {
            every_byte.push_back(at);
            if (at == stream.size() || rng.chance(1, 12)) {
                somewhere.push_back(at);
            }
        }
        REQUIRE(split_in_pieces(stream, {stream.size()}) == requests);
        REQUIRE(split_in_pieces(stream, every_byte) == requests);
        REQUIRE(split_in_pieces(stream, somewhere) == requests);
    }
}

TEST_CASE("any bytes at all are split the same whole and byte by byte") {
    for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
        CAPTURE(seed);
        Rng rng(seed);
        std::string stream = validate();
        for (std::uint64_t index = rng.below(4); index > 0; --index) {
            stream += random_request(rng);
        }
        stream[rng.below(stream.size())] = static_cast<char>(rng.below(256));
        std::vector<std::size_t> every_byte;
        for (std::size_t at = 1; at <= stream.size(); ++at) {
            every_byte.push_back(at);
        }
        REQUIRE(split_in_pieces(stream, every_byte) == split_in_pieces(stream, {stream.size()}));
    }
}

TEST_CASE("a connection begins with VALIDATE, once, with the right magic") {
    const auto first = [](const std::string& bytes) {
        RequestSplitter splitter(kLimits);
        return splitter.split(bytes);
    };
    CHECK(first(validate()).value() == 5);
    CHECK(first(validate().substr(0, 4)).value() == 0);
    CHECK(first(validate(0xefbeadde)).error().what == "VALIDATE has a wrong magic number");
    CHECK(first(ping(1).substr(0, 1)).error().what == "PING before VALIDATE");
    CHECK(first("GET / HTTP/1.1").error().what == "unknown operation 0x47");
    CHECK(refusal_of(validate().substr(0, 1)) == "a second VALIDATE");
    CHECK(refusal_of(byte(19)) == "unknown operation 0x13");
    CHECK(refusal_of(byte(255)) == "unknown operation 0xff");
}

TEST_CASE("a length is checked when it has arrived, before what it announces") {
    const std::string key_header = opcode(StoreOpcode::Get);
    CHECK(refusal_of(key_header + number(8192)).empty());
    CHECK(refusal_of(key_header + number(8193)) == "GET with a key of 8193 bytes, more than 8192");
    CHECK(refusal_of(key_header + number(8193).substr(0, 7)).empty());
    CHECK(refusal_of(key_header + number(-1)) ==
          "GET with a key of 18446744073709551615 bytes, more than 8192");
    const std::string value_header = opcode(StoreOpcode::Set) + text("k");
    CHECK(refusal_of(value_header + number(8 << 20)).empty());
    CHECK(refusal_of(value_header + number((8 << 20) + 1)) ==
          "SET with a value of 8388609 bytes, more than 8388608");
    for (const StoreOpcode code :
         {StoreOpcode::Check, StoreOpcode::Wait, StoreOpcode::MultiGet, StoreOpcode::MultiSet}) {
        CHECK(refusal_of(opcode(code) + number(131072)).empty());
        CHECK_FALSE(refusal_of(opcode(code) + number(131073)).empty());
        CHECK_FALSE(refusal_of(opcode(code) + number(-1)).empty());
    }
}

TEST_CASE("a request as a whole has a limit too") {
    Limits limits;
    limits.store_request_bytes_max = 100;
    RequestSplitter splitter(limits);
    REQUIRE(splitter.split(validate()).value() == 5);
    const std::string fits = multi_set({{"a", std::string(60, 'x')}});
    CHECK(splitter.split(fits).value() == fits.size());
    const Result<std::size_t> refused =
        splitter.split(multi_set({{"a", std::string(50, 'x')}, {"b", std::string(50, 'x')}}));
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().what == "MULTI_SET of more than 100 bytes");
}

}  // namespace ddprun::rdzv::store_test
