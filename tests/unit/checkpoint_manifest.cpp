// The manifest as text: what is written is read again, and nothing that deviates is taken.

#include <string>
#include <utility>
#include <vector>

#include "tests/unit/checkpoint_fixture.hpp"
#include "worker_runtime/checkpoint/hashing.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"

using namespace ddprun;
using namespace ddprun::worker;
using namespace ddprun::worker::test;

namespace {

const std::string kSum(32, 'a');

Manifest example() {
    return {.info = {.step = 9'000'000'000'000'000'000,
                     .generation = Generation(7),
                     .world_size = 4,
                     .values = {{"sampler", "17"}, {"größe", "a\nb\"c\\"}, {"", ""}}},
            .files = {{.name = kModelFile, .size = 123, .xxh3_128 = kSum},
                      {.name = "other.safetensors", .size = 0, .xxh3_128 = kSum}}};
}

// `text` up to the checksum, with one that is right.
std::string signed_text(std::string text) {
    text += ",\n  \"checksum\": \"" + xxh3_128_hex(text) + "\"\n}\n";
    return text;
}

std::string error_of(const std::string& text) {
    const std::vector<char> exact(text.begin(), text.end());
    const Result<Manifest> parsed = parse_manifest(std::string_view(exact.data(), exact.size()));
    return parsed ? "" : parsed.error().what;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("a manifest is read as it was written") {
    const Manifest manifest = example();
    const Result<std::string> text = format_manifest(manifest);
    REQUIRE(text);
    const Result<Manifest> read = parse_manifest(*text);
    REQUIRE(read);
    CHECK(read->info.step == manifest.info.step);
    CHECK(read->info.generation == manifest.info.generation);
    CHECK(read->info.world_size == manifest.info.world_size);
    CHECK(read->info.values == manifest.info.values);
    REQUIRE(read->files.size() == 2);
    CHECK(read->files[0].name == manifest.files[0].name);
    CHECK(read->files[0].size == 123);
    CHECK(read->files[1].xxh3_128 == kSum);
}

TEST_CASE("a later save of a step is told by its number, which older builds refuse by version") {
    Manifest manifest = example();
    const std::string first = format_manifest(manifest).value();
    CHECK(first.find("\"version\": 2,") != std::string::npos);
    CHECK(first.find("save") == std::string::npos);
    CHECK(parse_manifest(first).value().info.save == 0);
    manifest.info.save = 3;
    const std::string later = format_manifest(manifest).value();
    CHECK(later.find("\"version\": 3,\n  \"step\": 9000000000000000000,\n  \"save\": 3,\n") !=
          std::string::npos);
    CHECK(parse_manifest(later).value().info.save == 3);
}

TEST_CASE("the checksum is the one that xxhsum prints") {
    CHECK(xxh3_128_hex("") == "99aa06d3014798d86001c324468d497f");
    CHECK(xxh3_128_hex("ddprun") != xxh3_128_hex("ddpruN"));
    Xxh3Hasher pieces;
    pieces.add(bytes_of("ddp"));
    pieces.add({});
    pieces.add(bytes_of("run"));
    CHECK(pieces.hex() == xxh3_128_hex("ddprun"));
}

TEST_CASE("every flipped bit and every cut of a manifest is noticed") {
    const std::string text = format_manifest(example()).value();
    for (std::size_t at = 0; at < text.size(); ++at) {
        for (unsigned bit = 0; bit < 8; ++bit) {
            std::string flipped = text;
            flipped[at] = static_cast<char>(flipped[at] ^ static_cast<char>(1U << bit));
            if (parse_manifest(flipped)) {
                FAIL("bit " << bit << " of byte " << at << " was not noticed");
            }
        }
        CHECK_FALSE(parse_manifest(text.substr(0, at)));
    }
    CHECK_FALSE(parse_manifest(text + "\n"));
}

TEST_CASE("a manifest with a right checksum and wrong content is refused with the reason") {
    const std::string file = R"({"name":"m.safetensors","size":1,"xxh3_128":")" + kSum + "\"}";
    const std::string good = R"({"format":"ddprun checkpoint","version":1,"step":3,)"
                             R"("generation":1,"world_size":2,"values":{},"files":[)" +
                             file + "]";
    REQUIRE(error_of(signed_text(good)).empty());
    REQUIRE(error_of(signed_text(replaced(good, "\"version\":1", "\"version\":2"))).empty());
    const auto with = [&](const std::string& from, const std::string& to) {
        return signed_text(replaced(good, from, to));
    };
    const std::string deep(1'000'000, '[');
    const std::vector<std::pair<std::string, std::string>> cases{
        {"", "only 0 bytes"},
        {good, "own checksum is wrong or missing"},
        {signed_text(""), "does not begin with {"},
        {signed_text("{\"a\":1} x"), "not JSON"},
        {with("ddprun checkpoint", "other"), "does not have the format"},
        {with("\"version\":1", "\"version\":4"),
         "the manifest is of version 4, this build of ddprun reads 1 to 3; use the build that "
         "wrote"},
        {with("\"version\":1", "\"version\":3"), "lacks \"save\""},
        {with("\"version\":1", "\"version\":3,\"save\":0"), "\"save\" that is no number"},
        {with("\"version\":1", "\"version\":2,\"save\":1"), "unknown fields"},
        {with("\"version\":1", "\"version\":0"), "\"version\" that is no number"},
        {with("\"step\":3", "\"step\":-3"), "\"step\" that is no number"},
        {with("\"step\":3", "\"step\":3.0"), "\"step\" that is no number"},
        {with("\"step\":3", "\"step\":9223372036854775808"), "\"step\" that is no number"},
        {with("\"step\":3,", ""), "lacks \"step\""},
        {with("\"step\":3,", "\"step\":3,\"step\":3,"), "key \"step\" occurs twice"},
        {with("\"step\":3,", "\"step\":3,\"more\":3,"), "unknown fields"},
        {with("\"step\":3,", "\"step\":" + deep), "nested deeper than 3"},
        {with("\"world_size\":2", "\"world_size\":0"), "\"world_size\" that is no number"},
        {with("\"world_size\":2", "\"world_size\":2147483648"), "\"world_size\" that is no number"},
        {with("\"generation\":1", "\"generation\":\"1\""), "\"generation\" that is no number"},
        {with("\"values\":{}", "\"values\":[]"), "\"values\" that is not a JSON object"},
        {with("\"values\":{}", "\"values\":{\"a\":1}"), "value \"a\" of the manifest is no text"},
        {with("\"values\":{}", "\"values\":{\"a\":\"1\",\"a\":\"2\"}"), "\"a\" occurs twice"},
        {with("[" + file + "]", "{}"), "\"files\" that is not a JSON array"},
        {with(file, "1"), "is not an object"},
        {with(file, file + "," + file), "is listed twice"},
        {with("m.safetensors", "../m"), "has the name \"../m\", which is not allowed"},
        {with("m.safetensors", "/etc/passwd"), "not allowed"},
        {with("m.safetensors", ".."), "not allowed"},
        {with("m.safetensors", ""), "not allowed"},
        {with("m.safetensors", "a\\u0000b"), "not allowed"},
        {with("m.safetensors", "manifest.json"), "not allowed"},
        {with("m.safetensors", std::string(201, 'a')), "not allowed"},
        {with("\"size\":1", "\"size\":-1"), "\"size\" that is no number"},
        {with("\"size\":1", "\"size\":9223372036854775808"), "\"size\" that is no number"},
        {with(file, file + "," +
                        replaced(replaced(file, "\"size\":1", "\"size\":9223372036854775807"),
                                 "m.safetensors", "n.safetensors")),
         "\"size\" that is no number from 0 to 9223372036854775806"},
        {with(kSum, "x"), "checksum \"x\", which is none"},
        {with(kSum, std::string(32, 'A')), "which is none"},
    };
    for (const auto& [text, expected] : cases) {
        INFO(text.substr(0, 1000));
        CHECK_THAT(error_of(text), Catch::Contains(expected));
    }
}

TEST_CASE("a manifest names at most 65536 files and has at most 16 MiB") {
    Manifest manifest = example();
    manifest.files.clear();
    for (std::size_t i = 0; i < kManifestFilesMax; ++i) {
        manifest.files.push_back({.name = "m" + std::to_string(i), .size = 1, .xxh3_128 = kSum});
    }
    const std::string most = format_manifest(manifest).value();
    CHECK(error_of(most).empty());
    const std::string last = R"({"name":"m","size":1,"xxh3_128":")" + kSum + "\"},";
    const std::string before = most.substr(0, most.find(",\n  \"checksum\""));
    CHECK_THAT(error_of(signed_text(replaced(before, "\"files\": [", "\"files\": [" + last))),
               Catch::Contains("has 65537 files"));
    manifest.files.push_back({.name = "n", .size = 1, .xxh3_128 = kSum});
    CHECK_THAT(format_manifest(manifest).error().what, Catch::Contains("has 65537 files"));
    manifest.files.clear();

    manifest.info.values["large"] = std::string(kManifestBytesMax, 'x');
    const Result<std::string> text = format_manifest(manifest);
    REQUIRE_FALSE(text);
    CHECK(text.error().code == ErrorCode::LimitExceeded);
    CHECK_THAT(error_of(std::string(kManifestBytesMax + 1, ' ')), Catch::Contains("allowed are"));
}

TEST_CASE("values that JSON cannot carry are refused before anything is written") {
    for (const bool is_key : {false, true}) {
        Manifest manifest = example();
        manifest.info.values[is_key ? "\xff" : "rng"] = is_key ? "1" : "\xff\x00";
        const Result<std::string> text = format_manifest(manifest);
        REQUIRE_FALSE(text);
        CHECK_THAT(text.error().what, Catch::Contains("not UTF-8"));
    }
    Manifest manifest = example();
    manifest.info.world_size = 0;
    CHECK_FALSE(format_manifest(manifest));
}
