// The journal writes requests to etcd and reads answers, here as an etcd 3.4 gave them.

#include <nlohmann/json.hpp>

#include "base/rng.hpp"
#include "rendezvous/etcd/etcd_messages.hpp"
#include "rendezvous/wire/base64.hpp"
#include "tests/support/result_text.hpp"

using namespace ddprun;
using namespace ddprun::rdzv;

namespace {

using Json = nlohmann::json;

constexpr const char* kHeader =
    R"("header":{"cluster_id":"324952591200643719","member_id":"3319814642761637952",)"
    R"("revision":"7","raft_term":"2"})";

std::string answer(const std::string& members) {
    return std::string("{") + kHeader + "," + members + "}";
}

const std::string kFoo = R"({"key":"Zm9v","create_revision":"2","mod_revision":"5","version":"3",)"
                         R"("value":"YmFy","lease":"2324035516471566089"})";

}  // namespace

TEST_CASE("requests carry keys as base64 and numbers as text") {
    CHECK(grant_request(2).path == "/v3/lease/grant");
    CHECK(Json::parse(grant_request(2).body) == Json::parse(R"({"TTL":"2"})"));
    CHECK(keep_alive_request(9007199254740993).path == "/v3/lease/keepalive");
    CHECK(Json::parse(keep_alive_request(9007199254740993).body) ==
          Json::parse(R"({"ID":"9007199254740993"})"));
    CHECK(revoke_request(-1).path == "/v3/lease/revoke");
    CHECK(range_request("foo").path == "/v3/kv/range");
    CHECK(Json::parse(range_request("foo").body) == Json::parse(R"({"key":"Zm9v"})"));
    CHECK(Json::parse(range_request("foo", "fop", 16).body) ==
          Json::parse(R"({"key":"Zm9v","range_end":"Zm9w","limit":"16"})"));
    CHECK(compaction_request(8).path == "/v3/kv/compaction");
    CHECK(Json::parse(compaction_request(8).body) == Json::parse(R"({"revision":"8"})"));
    CHECK(watch_request("foo", 8).path == "/v3/watch");
    CHECK(Json::parse(watch_request("foo", 8).body) ==
          Json::parse(R"({"create_request":{"key":"Zm9v","start_revision":"8",)"
                      R"("filters":["NOPUT"]}})"));
}

TEST_CASE("a campaign creates the key only where there is none") {
    const EtcdRequest request = campaign_request("foo", "bar", 12);
    CHECK(request.path == "/v3/kv/txn");
    CHECK(Json::parse(request.body) == Json::parse(R"({
        "compare": [{"key":"Zm9v","target":"CREATE","result":"EQUAL","create_revision":"0"}],
        "success": [{"request_put":{"key":"Zm9v","value":"YmFy","lease":"12"}}],
        "failure": [{"request_range":{"key":"Zm9v"}}]})"));
}

TEST_CASE("a guarded change depends on the leader's term and on the key it replaces") {
    const EtcdGuard guard{.leader_key = "foo", .term = 3, .mod_revision = 5};
    const Json compare = Json::parse(R"([
        {"key":"Zm9v","target":"CREATE","result":"EQUAL","create_revision":"3"},
        {"key":"YmFy","target":"MOD","result":"EQUAL","mod_revision":"5"}])");
    const Json failure =
        Json::parse(R"([{"request_range":{"key":"Zm9v"}},{"request_range":{"key":"YmFy"}}])");
    const Json put = Json::parse(guarded_request(guard, "bar", "foo").body);
    CHECK(put["compare"] == compare);
    CHECK(put["failure"] == failure);
    CHECK(put["success"] == Json::parse(R"([{"request_put":{"key":"YmFy","value":"Zm9v"}}])"));
    const Json erase = Json::parse(guarded_request(guard, "bar", std::nullopt).body);
    CHECK(erase["compare"] == compare);
    CHECK(erase["success"] == Json::parse(R"([{"request_delete_range":{"key":"YmFy"}}])"));
}

TEST_CASE("the end of a prefix lies behind all of its keys and before the next ones") {
    CHECK(end_of_prefix("/ddprun/x/run/") == "/ddprun/x/run0");
    CHECK(end_of_prefix("/ddprun/x/run/") > "/ddprun/x/run/\xff\xff");
}

TEST_CASE("answers are read as etcd gives them") {
    const Result<EtcdLease> granted = read_grant(answer(R"("ID":"2324035516471566085","TTL":"2")"));
    REQUIRE(granted);
    CHECK(granted->id == 2324035516471566085);
    CHECK(granted->ttl_seconds == 2);

    const Result<EtcdLease> kept =
        read_keep_alive(std::string(R"({"result":{)") + kHeader + R"(,"ID":"12","TTL":"2"}})");
    REQUIRE(kept);
    CHECK(kept->ttl_seconds == 2);
    const Result<EtcdLease> expired =
        read_keep_alive(std::string(R"({"result":{)") + kHeader + R"(,"ID":"12"}})");
    REQUIRE(expired);
    CHECK(expired->ttl_seconds == 0);

    const Result<EtcdRange> range =
        read_range(answer(R"("kvs":[)" + kFoo +
                          R"(,{"key":"Zm9w","create_revision":"3","mod_revision":"3",)"
                          R"("version":"1"}],"more":true,"count":"4")"));
    REQUIRE(range);
    CHECK(range->revision == 7);
    REQUIRE(range->entries.size() == 2);
    CHECK(range->entries[0].key == "foo");
    CHECK(range->entries[0].value == "bar");
    CHECK(range->entries[0].create_revision == 2);
    CHECK(range->entries[0].mod_revision == 5);
    CHECK(range->entries[0].lease == 2324035516471566089);
    CHECK(range->entries[1].value.empty());
    CHECK(range->has_more);
    const Result<EtcdRange> nothing = read_range(std::string("{") + kHeader + "}");
    REQUIRE(nothing);
    CHECK(nothing->entries.empty());
    CHECK_FALSE(nothing->has_more);
}

TEST_CASE("the answer to a transaction tells whether it was done, or how things are instead") {
    const Result<EtcdCampaign> won = read_campaign(
        answer(R"("succeeded":true,"responses":[{"response_put":{"header":{"revision":"7"}}}])"));
    REQUIRE(won);
    CHECK(won->has_won);
    CHECK(won->revision == 7);
    const Result<EtcdCampaign> lost = read_campaign(
        answer(R"("responses":[{"response_range":{"header":{"revision":"7"},"kvs":[)" + kFoo +
               R"(],"count":"1"}}])"));
    REQUIRE(lost);
    CHECK_FALSE(lost->has_won);
    REQUIRE(lost->incumbent);
    CHECK(lost->incumbent->value == "bar");

    const Result<EtcdGuarded> done = read_guarded(
        answer(R"("succeeded":true,"responses":[{"response_put":{"header":{"revision":"7"}}}])"));
    REQUIRE(done);
    CHECK(done->is_done);
    CHECK(done->revision == 7);
    const Result<EtcdGuarded> refused =
        read_guarded(answer(R"("responses":[{"response_range":{"header":{"revision":"7"}}},)"
                            R"({"response_range":{"kvs":[)" +
                            kFoo + R"(],"count":"1"}}])"));
    REQUIRE(refused);
    CHECK_FALSE(refused->is_done);
    CHECK_FALSE(refused->leader);
    REQUIRE(refused->entry);
    CHECK(refused->entry->mod_revision == 5);
}

TEST_CASE("a watch tells of its beginning, of deletions and of its end") {
    const std::string begin = std::string(R"({"result":{)") + kHeader;
    const Result<EtcdWatched> created = read_watched(begin + R"(,"created":true}})");
    REQUIRE(created);
    CHECK_FALSE(created->is_deleted);
    CHECK_FALSE(created->is_cancelled);
    const Result<EtcdWatched> put = read_watched(begin + R"(,"events":[{"kv":)" + kFoo + "}]}}");
    REQUIRE(put);
    CHECK_FALSE(put->is_deleted);
    const Result<EtcdWatched> deleted = read_watched(
        begin + R"(,"events":[{"type":"DELETE","kv":{"key":"Zm9v","mod_revision":"4"}}]}})");
    REQUIRE(deleted);
    CHECK(deleted->is_deleted);
    const Result<EtcdWatched> compacted =
        read_watched(begin + R"(,"canceled":true,"compact_revision":"9"}})");
    REQUIRE(compacted);
    CHECK(compacted->is_cancelled);
    const Result<EtcdWatched> failed =
        read_watched(R"({"error":{"grpc_code":14,"message":"etcdserver: no leader"}})");
    REQUIRE(failed);
    CHECK(failed->is_cancelled);
}

TEST_CASE("what etcd says when it refuses is found") {
    CHECK(read_error(R"({"error":"etcdserver: requested lease not found","code":5})") ==
          "etcdserver: requested lease not found");
    CHECK(read_error("<html>") == std::nullopt);
}

TEST_CASE("whatever else answers is refused in one line") {
    for (const std::string& body :
         {std::string(), std::string("<html>\n404 page not found\x01"), std::string("[]"),
          std::string("{}"), std::string(100000, '['), std::string("{\"header\":7}"),
          answer(R"("kvs":[7])"), answer(R"("kvs":[{"key":"%%%"}])"), answer(R"("kvs":{})"),
          answer(R"("kvs":[{"mod_revision":"12x"}],"ID":"x","TTL":"1")"),
          answer(R"("kvs":[{"mod_revision":"99999999999999999999"}],"TTL":"-1","ID":"1")")}) {
        INFO(body.substr(0, 200));
        const Result<EtcdRange> range = read_range(body);
        REQUIRE_FALSE(range);
        CHECK(range.error().code == ErrorCode::BadMessage);
        CHECK(range.error().what.find('\n') == std::string::npos);
        CHECK(range.error().what.size() < 300);
        CHECK_FALSE(read_grant(body));
        CHECK_FALSE(read_keep_alive(body));
        CHECK_FALSE(read_campaign(body));
        CHECK_FALSE(read_guarded(body));
        CHECK_FALSE(read_watched(body));
        CHECK_FALSE(read_error(body));
    }
}

TEST_CASE("damaged answers are read or refused, and nothing worse") {
    const std::vector<std::string> good{
        answer(R"("kvs":[)" + kFoo + R"(],"more":true)"),
        answer(R"("responses":[{"response_range":{"kvs":[)" + kFoo +
               R"(]}},{"response_range":{"kvs":[)" + kFoo + R"(]}}])"),
        std::string(R"({"result":{)") + kHeader + R"(,"ID":"12","TTL":"2","events":[{}]}})"};
    Rng rng(5);
    for (int number = 0; number < 20000; ++number) {
        std::string body = good[static_cast<std::size_t>(rng.below(good.size()))];
        for (std::uint64_t flips = 1 + rng.below(3); flips > 0; --flips) {
            body[static_cast<std::size_t>(rng.below(body.size()))] =
                R"({}[]",:0x-)"[static_cast<std::size_t>(rng.below(11))];
        }
        static_cast<void>(read_range(body));
        static_cast<void>(read_campaign(body));
        static_cast<void>(read_guarded(body));
        static_cast<void>(read_keep_alive(body));
        static_cast<void>(read_watched(body));
        static_cast<void>(read_error(body));
    }
    SUCCEED();
}
