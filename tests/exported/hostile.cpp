// Programs that nobody has exported: each is a stored one in which a member of the graph is
// changed. They are refused by name when the file is read, before memory of tensors is taken.
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "catch.hpp"
#include "difference.hpp"
#include "edited_zip.hpp"
#include "errors.hpp"
#include "folder.hpp"

import tessera.base;
import tessera.checkpoint;
import tessera.exported;
import tessera.tensor;

using namespace tessera;
using namespace exported_test;
using nlohmann::json;
using testing::Folder;
using testing::input_error;

namespace {

constexpr const char* program_name = "models/model.json";
constexpr const char* weights_name = "data/weights/model_weights_config.json";

/// Why the graph is refused when one of the file's texts is changed.
std::string refusal_of(const std::string& program, const std::string& entry,
                       const std::function<void(json&)>& change) {
  testing::ZipTexts texts = testing::unzipped(testing::read_file(stored() + "/" + program));
  std::string name;
  for (const auto& [own, text] : texts) {
    name = own.ends_with(entry) ? own : name;
  }
  REQUIRE(!name.empty());
  json edited = json::parse(texts.at(name));
  change(edited);
  texts[name] = edited.dump();
  const Folder folder;
  const std::string path = folder.write("edited.pt2", testing::zipped(texts));
  return input_error([&] {
    const auto file = checkpoint_format("pt2").open(path);
    exported::read_exported_graph(*file);
  });
}

std::string refusal_of_graph(const std::function<void(json& graph)>& change,
                             const std::string& program = "convolutions.pt2") {
  return refusal_of(program, program_name,
                    [&](json& all) { change(all["graph_module"]["graph"]); });
}
std::string refusal_of_signature(const std::function<void(json& signature)>& change) {
  return refusal_of("convolutions.pt2", program_name,
                    [&](json& all) { change(all["graph_module"]["signature"]); });
}
/// Of the sizes and strides of "first.0.weight".
std::string refusal_of_weight(const std::function<void(json& info)>& change) {
  return refusal_of("convolutions.pt2", weights_name,
                    [&](json& all) { change(all["config"]["first.0.weight"]["tensor_meta"]); });
}

}  // namespace

TEST_CASE("a program whose JSON is only written again is read") {
  testing::ZipTexts texts = testing::unzipped(testing::read_file(stored() + "/convolutions.pt2"));
  const Folder folder;
  const auto file = checkpoint_format("pt2").open(folder.write("same.pt2", testing::zipped(texts)));
  CHECK(exported::read_exported_graph(*file).outputs.size() == 1);
}

TEST_CASE("a program in a circle, or with names that are there twice, is refused") {
  const auto name_of = [](json& node) -> json& { return node["outputs"][0]["as_tensor"]["name"]; };
  CHECK_THAT(refusal_of_graph(
                 [](json& graph) { std::swap(graph["nodes"].front(), graph["nodes"].back()); }),
             Catch::Contains("is used before it is computed"));
  CHECK_THAT(refusal_of_graph(
                 [&](json& graph) { name_of(graph["nodes"][2]) = name_of(graph["nodes"][1]); }),
             Catch::Contains("is computed twice"));
  CHECK_THAT(refusal_of_signature([](json& signature) {
               signature["input_specs"].push_back(signature["input_specs"][0]);
             }),
             Catch::Contains("is computed twice"));
  testing::ZipTexts texts = testing::unzipped(testing::read_file(stored() + "/convolutions.pt2"));
  const Folder folder;
  const std::string twice = folder.write("twice.pt2", testing::zipped(texts, /*last_twice=*/true));
  CHECK_THAT(input_error([&] { checkpoint_format("pt2").open(twice); }),
             Catch::Contains("it has two entries"));
}

TEST_CASE("sizes and ranges that no program has are refused") {
  const auto range = [](json low, json high) {
    return refusal_of("convolutions.pt2", program_name, [&](json& all) {
      for (auto& [symbol, one] : all["range_constraints"].items()) {
        one = {{"min_val", low}, {"max_val", high}};
      }
    });
  };
  CHECK_THAT(range(64, 2), Catch::Contains("is empty (64 to 2)"));
  CHECK_THAT(range(2, "many"), Catch::Contains("edited.pt2"));
  CHECK_THAT(range(2, 1e300), Catch::Contains("edited.pt2"));
  CHECK_THAT(refusal_of_graph([](json& graph) {
               for (auto& [name, value] : graph["tensor_values"].items()) {
                 value["sizes"] = {{{"as_int", -3}}};
               }
             }),
             Catch::Contains("is negative"));
}

TEST_CASE("weights of other sizes than their bytes are refused before they are read") {
  const json huge = std::int64_t{1} << 40;
  CHECK_THAT(refusal_of_weight([&](json& info) { info["sizes"][0]["as_int"] = huge; }),
             Catch::Contains("reaches beyond its"));
  // Strides of 0 need no further bytes in the file, but memory.
  CHECK_THAT(refusal_of_weight([&](json& info) {
               info["sizes"][0]["as_int"] = huge;
               info["strides"][0]["as_int"] = 0;
             }),
             Catch::Contains("'first.0.weight' of [1099511627776, 3, 3, 3] repeats its"));
  CHECK_THAT(refusal_of_weight([&](json& info) {
               for (json& size : info["sizes"]) {
                 size["as_int"] = std::int64_t{1} << 62;
               }
             }),
             Catch::Contains("reaches beyond its"));
  CHECK_THAT(refusal_of_weight([](json& info) { info["sizes"][0]["as_int"] = 7; }),
             Catch::Contains("'first.0.weight' is not the tensor that the program uses"));
}

TEST_CASE("a program that changes what is no buffer is refused") {
  const auto updated = [](const std::function<void(json & update)>& change) {
    return refusal_of_signature([&](json& signature) {
      for (json& spec : signature["output_specs"]) {
        if (spec.contains("buffer_mutation")) {
          change(spec["buffer_mutation"]);
          return;
        }
      }
    });
  };
  CHECK_THAT(updated([](json& update) { update["buffer_name"] = "nobody"; }),
             Catch::Contains("'nobody', which the program changes, is not a buffer"));
  CHECK_THAT(updated([](json& update) { update["buffer_name"] = "head.weight"; }),
             Catch::Contains("'head.weight', which the program changes, is not a buffer"));
}

TEST_CASE("everything that is not known is named at once, with counts") {
  const std::string text = refusal_of("convolutions.pt2", program_name, [](json& all) {
    json& graph = all["graph_module"]["graph"];
    for (json& node : graph["nodes"]) {
      const std::string target = node["target"];
      if (target == "torch.ops.aten.relu.default") {
        node["target"] = "torch.ops.mine.relu.default";
      } else if (target == "torch.ops.aten.mean.dim") {
        node["target"] = "torch.ops.higher_order.cond";
      }
    }
    json& outputs = all["graph_module"]["signature"]["output_specs"];
    json changed = {{"user_input_mutation",
                     {{"arg", outputs[0].begin()->at("arg")}, {"user_input_name", "x"}}}};
    for (const json& spec : outputs) {
      if (spec.contains("user_output")) {
        changed["user_input_mutation"]["arg"] = spec["user_output"]["arg"];
      }
    }
    outputs.push_back(changed);
    outputs.push_back(changed);
  });
  CHECK_THAT(text, Catch::Contains("operator mine.relu.default: 2"));
  CHECK_THAT(text, Catch::Contains("control flow (higher_order.cond): 1"));
  CHECK_THAT(text, Catch::Contains("an input that is changed in place: 2"));
}

TEST_CASE("a compressed archive is refused, whatever it would become") {
  testing::ZipTexts texts = testing::unzipped(testing::read_file(stored() + "/convolutions.pt2"));
  const Folder folder;
  // A kibibyte that says that it is 1 TiB of zeros.
  const std::string bomb =
      folder.write("bomb.pt2", testing::zipped(texts, /*last_twice=*/false, /*deflated=*/true));
  CHECK_THAT(input_error([&] { checkpoint_format("pt2").open(bomb); }),
             Catch::Contains("it is compressed"));
}

TEST_CASE("modules in too many levels, and names that are none, are refused") {
  std::string path;
  std::string stack;
  for (int i = 0; i < 80; ++i) {
    path += (i == 0 ? "m" : ".m");
    stack += (i == 0 ? "" : ";") + std::string("k") + std::to_string(i) + "," + path + ",A";
  }
  CHECK_THAT(refusal_of_graph(
                 [&](json& graph) { graph["nodes"][0]["metadata"]["nn_module_stack"] = stack; }),
             Catch::Contains("more than 64 levels"));
  CHECK_THAT(refusal_of_signature([](json& signature) {
               for (json& spec : signature["input_specs"]) {
                 if (spec.contains("parameter")) {
                   spec["parameter"]["parameter_name"] = "a..b";
                 }
               }
             }),
             Catch::Contains("'a..b' is not the name of a parameter"));
}
