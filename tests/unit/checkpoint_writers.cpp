// Checkpoints that several processes write: parts of tensors, the files, and what goes wrong.

#include <sys/statvfs.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/rng.hpp"
#include "tests/unit/checkpoint_fixture.hpp"
#include "worker_runtime/checkpoint/folder.hpp"
#include "worker_runtime/checkpoint/verification.hpp"

using namespace ddprun;
using namespace ddprun::worker;
using namespace ddprun::worker::test;

namespace {

using Names = std::vector<std::string>;

std::optional<std::uint64_t> free_bytes;  // that a file system says it has, if given

/// Rows `begin` to `end` of a tensor of 6 rows of 4 bytes, whose bytes are `all`.
TensorView rows(const std::string& name, std::string_view all, std::int64_t begin,
                std::int64_t end) {
    TensorView part = tensor(name, "U8", {end - begin, 4},
                             all.substr(static_cast<std::size_t>(begin * 4),
                                        static_cast<std::size_t>((end - begin) * 4)));
    part.layout = Layout{.global_shape = {6, 4}, .offsets = {begin, 0}};
    return part;
}

struct Written {
    PartialCheckpoint partial;
    Manifest manifest;

    void add(const std::string& name, const std::string& prefix,
             const std::vector<TensorView>& tensors) {
        manifest.files.push_back(write_tensors(partial, name, prefix, tensors).value());
    }
};

Written begun(const std::string& dir, std::int64_t step) {
    return {.partial = begin_checkpoint(dir, step, 0).value(),
            .manifest = {.info = {.step = step, .world_size = 2}, .files = {}}};
}

/// The rows of a stored tensor, put together.
std::string rows_of(const StoredTensor& stored) {
    std::string all(24, '?');
    for (const StoredTensor::Part& part : stored.parts) {
        all.replace(static_cast<std::size_t>(part.box.offsets[0] * 4), part.bytes.size(),
                    text_of(part.bytes));
    }
    return all;
}

}  // namespace

// In the place of libc's.
extern "C" int statvfs(const char* path, struct statvfs* status) {
    struct statvfs64 found {};
    if (::statvfs64(path, &found) != 0) {
        return -1;
    }
    *status = {};
    status->f_frsize = free_bytes ? 1 : found.f_frsize;
    status->f_bavail = free_bytes.value_or(found.f_bavail);
    return 0;
}

TEST_CASE("parts that two processes wrote are one tensor, and whole ones are where they are") {
    const TempDir folder;
    const std::string all = some_bytes(24);
    const std::string bias = some_bytes(4, 2);
    Written written = begun(folder.path(), 7);
    CHECK(names_in(folder.path()) == Names{written.partial.name});
    CHECK(list_checkpoints(folder.path()).value().empty());
    written.add(tensor_file_name("model", 1, 2), "model.",
                {rows("model.weight", all, 0, 4), tensor("model.bias", "F32", {1}, bias)});
    written.add(tensor_file_name("model", 2, 2), "model.", {rows("model.weight", all, 4, 6)});
    written.add(tensor_file_name("training", 1, 1), "",
                {tensor("optimizer.lr.0", "F32", {}, bias)});
    const std::string path = publish(written.partial, written.manifest, {}).value();
    CHECK(names_in(path) == Names{"manifest.json", "model-00001-of-00002.safetensors",
                                  "model-00002-of-00002.safetensors",
                                  "training-00001-of-00001.safetensors"});

    const LoadedCheckpoint loaded = read_checkpoint(folder.path(), 7).value();
    CHECK(loaded.tensors.size() == 3);
    const StoredTensor& weight = loaded.tensors.at("model.weight");
    CHECK(weight.shape == std::vector<std::int64_t>{6, 4});
    CHECK(weight.parts.size() == 2);
    CHECK(rows_of(weight) == all);
    CHECK(text_of(loaded.tensors.at("model.bias")) == bias);
    CHECK(loaded.tensors.at("optimizer.lr.0").shape.empty());
    CHECK(verify_checkpoint(folder.path(), 7, [](std::uint64_t /*bytes*/) {}));
}

TEST_CASE("the mesh dimension of a tensor in parts is in the files, and parts agree on it") {
    const std::string all = some_bytes(24);
    const auto along = [&](std::int64_t begin, std::int64_t end, const std::string& dimension) {
        TensorView part = rows("weight", all, begin, end);
        part.layout->mesh_dimension = dimension;
        return part;
    };
    const auto read = [&](const std::vector<TensorView>& parts) {
        const TempDir folder;
        Written written = begun(folder.path(), 1);
        for (std::size_t i = 0; i < parts.size(); ++i) {
            written.add(std::to_string(i) + ".safetensors", "", {parts[i]});
        }
        (void)publish(written.partial, written.manifest, {}).value();
        return read_checkpoint(folder.path(), 1);
    };
    const auto shard = read({along(0, 4, "shard"), along(4, 6, "shard")});
    REQUIRE(shard);
    CHECK(shard->tensors.at("weight").mesh_dimension == "shard");
    CHECK(rows_of(shard->tensors.at("weight")) == all);
    // The only part is the whole.
    CHECK(read({along(0, 6, "shard")}).value().tensors.at("weight").mesh_dimension == "shard");
    CHECK(read({along(0, 4, ""), along(4, 6, "")}).value().tensors.at("weight").mesh_dimension ==
          "");
    CHECK_THAT(
        read({along(0, 4, "shard"), along(4, 6, "data")}).error().what,
        Catch::Contains("tensor \"weight\" is U8 [6,4] sharded along `data` here and U8 [6,4] "
                        "sharded along `shard` in another file"));
}

TEST_CASE("a tensor whose parts are not all there, or are there twice, is refused by name") {
    const std::string all = some_bytes(24);
    const auto error_with = [&](const std::vector<TensorView>& second) {
        const TempDir folder;
        Written written = begun(folder.path(), 1);
        written.add("a.safetensors", "", {rows("weight", all, 0, 4)});
        written.add("b.safetensors", "", second);
        REQUIRE(publish(written.partial, written.manifest, {}));
        const Result<LoadedCheckpoint> loaded = read_checkpoint(folder.path(), 1);
        return loaded ? "" : loaded.error().what;
    };
    CHECK(error_with({rows("weight", all, 4, 6)}).empty());
    CHECK_THAT(error_with({}), Catch::Contains("tensor \"weight\": the element at [4,0] of a "
                                               "tensor of shape [6,4] is in none of its parts"));
    CHECK_THAT(error_with({rows("weight", all, 3, 6)}), Catch::Contains("in several of its parts"));
    CHECK_THAT(error_with({tensor("weight", "U8", {6, 4}, all)}),
               Catch::Contains("in several of its parts"));
    CHECK_THAT(error_with({tensor("weight", "U8", {4}, all.substr(0, 4))}),
               Catch::Contains("tensor \"weight\" is U8 [4] here and U8 [6,4] in another file"));
    TensorView other = rows("weight", all, 4, 6);
    other.dtype = "I8";
    CHECK_THAT(error_with({other}), Catch::Contains("is I8 [6,4] here and U8 [6,4]"));
}

TEST_CASE("the index says where each tensor of the model lies") {
    const TempDir folder;
    const std::string bytes = some_bytes(4);
    Written written = begun(folder.path(), 3);
    written.add("model-00001-of-00001.safetensors", "model.",
                {tensor("model.fc.weight", "F32", {1}, bytes)});
    written.manifest.files.push_back(
        write_model_index(written.partial, {{"fc.weight", "model-00001-of-00001.safetensors"}}, 4)
            .value());
    const std::string path = publish(written.partial, written.manifest, {}).value();
    const auto index = nlohmann::json::parse(read_text(path + "/model.safetensors.index.json"));
    CHECK(index ==
          nlohmann::json{{"metadata", {{"total_size", 4}}},
                         {"weight_map", {{"fc.weight", "model-00001-of-00001.safetensors"}}}});
    CHECK(read_checkpoint(folder.path(), 3).value().tensors.count("model.fc.weight") == 1);
    // Its bytes are verified as those of all files are.
    write_text(path + "/model.safetensors.index.json",
               read_text(path + "/model.safetensors.index.json").replace(0, 1, "["));
    CHECK_FALSE(read_checkpoint(folder.path(), 3));
}

TEST_CASE("processes that share the reading verify each file once") {
    const TempDir folder;
    const std::string bytes = some_bytes(4);
    Written written = begun(folder.path(), 1);
    for (const std::string name : {"a", "b", "c"}) {
        written.add(name + ".safetensors", "", {tensor(name, "F32", {1}, bytes)});
    }
    const std::string path = publish(written.partial, written.manifest, {}).value();
    const std::string file = path + "/b.safetensors";
    std::string damaged = read_text(file);
    damaged.back() = static_cast<char>(damaged.back() ^ 1);
    write_text(file, damaged);
    const auto is_read = [&](std::size_t reader, std::size_t readers) {
        return read_checkpoint(folder.path(), 1, {.reader = reader, .readers = readers})
            .has_value();
    };
    CHECK_FALSE(is_read(0, 1));
    CHECK(is_read(0, 2));
    CHECK_FALSE(is_read(1, 2));
    CHECK(is_read(0, 3));
    CHECK_FALSE(is_read(1, 3));
    CHECK(is_read(2, 3));
    CHECK(is_read(7, 8));  // more processes than files
}

TEST_CASE("a checkpoint that is larger than the free space is refused before it is begun") {
    const TempDir folder;
    free_bytes = 1000;
    CHECK(begin_checkpoint(folder.path(), 1, 1000));
    const Result<PartialCheckpoint> refused = begin_checkpoint(folder.path(), 2, 1001);
    free_bytes.reset();
    REQUIRE_FALSE(refused);
    CHECK_THAT(refused.error().what, Catch::Contains("1001 bytes are needed and 1000 are free"));
    CHECK_THAT(refused.error().what, Catch::Contains("No space left on device"));
    CHECK(names_in(folder.path()).size() == 1);
}

TEST_CASE("an abandoned checkpoint leaves nothing, and its late writer fails") {
    const TempDir folder;
    const Written written = begun(folder.path(), 1);
    abandon(written.partial);
    CHECK(names_in(folder.path()).empty());
    const std::string bytes = some_bytes(4);
    const Result<ManifestFile> late =
        write_tensors(written.partial, "a.safetensors", "", {tensor("a", "F32", {1}, bytes)});
    REQUIRE_FALSE(late);
    CHECK_THAT(late.error().what, Catch::Contains(written.partial.name));
    CHECK_FALSE(publish(written.partial, written.manifest, {}));
    CHECK(names_in(folder.path()).empty());
}
