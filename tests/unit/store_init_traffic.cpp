// When the clients of a store came, and when torch.distributed's default group was connected, from
// what PyTorch 2.13 was seen to ask for.
#include <string>

#include "rendezvous/store/core/init_traffic.hpp"
#include "rendezvous/store/protocol/request.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::rdzv::store_test {

namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr Instant kBegin{std::chrono::hours(1)};

std::string request(StoreOpcode opcode, const std::string& key) {
    std::string text;
    append_u8(text, static_cast<std::uint8_t>(opcode));
    append_text(text, key);
    return text;
}

std::int64_t ns(Instant at) {
    return nanoseconds(at.time_since_epoch()).count();
}

}  // namespace

TEST_CASE("only what the default group asks for of its own is taken for init_process_group()") {
    const auto is_one = [](StoreOpcode opcode, const std::string& key) {
        return InitTraffic::is_of_default_group(request(opcode, key));
    };
    CHECK(is_one(StoreOpcode::Get, "/default_pg/0//cpu//0/1"));
    CHECK(is_one(StoreOpcode::Set, "/default_pg/0//cuda//0"));
    CHECK_FALSE(is_one(StoreOpcode::Wait, "/default_pg/0//cpu//0/1"));
    CHECK_FALSE(is_one(StoreOpcode::Check, "/default_pg/0//exception_dump"));
    CHECK_FALSE(is_one(StoreOpcode::Add, "init/"));
    CHECK_FALSE(is_one(StoreOpcode::Get, "/1//cpu//0/1"));
    CHECK_FALSE(is_one(StoreOpcode::Get, ""));
    CHECK_FALSE(is_one(StoreOpcode::Get, std::string(100, 'x') + "default_pg/0/"));
}

TEST_CASE("the group is ready when the last of all clients has asked for the last time") {
    SharedInitTraffic shared;
    InitTraffic traffic(2, shared);
    CHECK(traffic.is_open());
    traffic.note_connected(kBegin, 1);
    CHECK(shared.all_here_ns == 0);
    traffic.note_connected(kBegin + seconds(1), 2);
    traffic.note_connected(kBegin + seconds(2), 3);  // one more than expected
    CHECK(shared.all_here_ns == ns(kBegin + seconds(1)));
    traffic.note_of_default_group(kBegin + seconds(3), StoreClient(0));
    traffic.note_of_default_group(kBegin + seconds(4), StoreClient(0));
    CHECK(shared.group_ns == 0);
    traffic.note_of_default_group(kBegin + seconds(5), StoreClient(70));
    CHECK(shared.group_ns == ns(kBegin + seconds(5)));
    traffic.note_of_default_group(kBegin + seconds(6), StoreClient(0));
    CHECK(shared.group_ns == ns(kBegin + seconds(6)));
    shared.is_over = true;
    CHECK_FALSE(traffic.is_open());
    const InitTraffic next(2, shared);
    CHECK(next.is_open());
    CHECK(shared.group_ns == 0);
    CHECK(shared.all_here_ns == 0);
    CHECK_FALSE(InitTraffic(0, shared).is_open());
}

}  // namespace ddprun::rdzv::store_test
