// Python's own safetensors reads what we write, and we read what it writes.

#include <map>
#include <string>
#include <vector>

#include "tests/support/torch_python.hpp"
#include "tests/unit/checkpoint_fixture.hpp"
#include "worker_runtime/checkpoint/safetensors.hpp"

using namespace ddprun;
using namespace ddprun::worker;
using namespace ddprun::worker::test;

namespace {

// The tensors that checkpoint_python.py expects and makes: of every type a vector, a scalar, an
// empty one and a matrix, each byte of which is 0 or 1, because a truth value may have no other.
struct Example {
    std::string name;
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::string bytes;
};

std::vector<Example> examples() {
    const std::vector<std::vector<std::int64_t>> shapes{{5}, {}, {0, 3}, {2, 3}};
    std::vector<Example> all;
    for (const std::string dtype :
         {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3",
          "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64", "U64", "U32", "U16"}) {
        for (const std::vector<std::int64_t>& shape : shapes) {
            Example& one = all.emplace_back();
            one.name = dtype + "." + std::to_string(shape.size()) + "." +
                       std::to_string(shape.empty() ? 1 : shape[0]);
            one.dtype = dtype;
            one.shape = shape;
            one.bytes.resize(tensor_bytes(dtype, shape).value());
            for (std::size_t i = 0; i < one.bytes.size(); ++i) {
                one.bytes[i] = static_cast<char>((i * i + i / 3) % 2);
            }
        }
    }
    return all;
}

}  // namespace

TEST_CASE("Python's safetensors reads a checkpoint of ours, every type and shape") {
    if (!ddprun::test::is_torch_python_there()) {
        return;
    }
    const TempDir folder;
    const std::vector<Example> all = examples();
    std::vector<TensorView> tensors;
    for (const Example& one : all) {
        tensors.push_back(tensor(one.name, one.dtype, one.shape, one.bytes));
    }
    const Result<std::string> path = publish_checkpoint(folder.path(), {.step = 3}, tensors);
    REQUIRE(path);
    CHECK(ddprun::test::run_torch_python("process/checkpoint_python.py", {"read", *path}) == 0);
    // And it sees a difference.
    tensors.pop_back();
    REQUIRE(publish_checkpoint(folder.path(), {.step = 3}, tensors));
    CHECK(ddprun::test::run_torch_python("process/checkpoint_python.py", {"read", *path}) == 1);
}

TEST_CASE("a file that Python's safetensors wrote is read, every type and shape") {
    if (!ddprun::test::is_torch_python_there()) {
        return;
    }
    const TempDir folder;
    const std::string file = folder / "python.safetensors";
    REQUIRE(ddprun::test::run_torch_python("process/checkpoint_python.py", {"write", file}) == 0);
    const std::string text = read_text(file);
    const Result<std::vector<TensorView>> read = parse_safetensors(bytes_of(text));
    REQUIRE(read);
    std::map<std::string, TensorView> by_name;
    for (const TensorView& one : *read) {
        by_name[one.name] = one;
    }
    const std::vector<Example> all = examples();
    CHECK(by_name.size() == all.size());
    for (const Example& one : all) {
        INFO(one.name);
        REQUIRE(by_name.count(one.name) == 1);
        CHECK(by_name[one.name].dtype == one.dtype);
        CHECK(by_name[one.name].shape == one.shape);
        CHECK(text_of(by_name[one.name].bytes) == one.bytes);
    }
}

TEST_CASE("Python's safetensors refuses the files that we refuse") {
    if (!ddprun::test::is_torch_python_there()) {
        return;
    }
    const TempDir folder;
    const std::string data(4, '\1');
    const auto file_with = [&](const std::string& header) {
        std::string text(8, '\0');
        text[0] = static_cast<char>(header.size());
        return text + header + data;
    };
    const std::map<std::string, std::string> cases{
        {"hole", R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})"},
        {"rest", R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})"},
        {"beyond", R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}})"},
        {"shape", R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,4]}})"},
        {"type", R"({"a":{"dtype":"X8","shape":[4],"data_offsets":[0,4]}})"},
    };
    std::vector<std::string> args{"refuse"};
    for (const auto& [name, header] : cases) {
        const std::string text = file_with(header);
        CHECK_FALSE(parse_safetensors(bytes_of(text)));
        args.push_back(folder / name);
        write_text(args.back(), text);
    }
    CHECK(ddprun::test::run_torch_python("process/checkpoint_python.py", args) == 0);
}
