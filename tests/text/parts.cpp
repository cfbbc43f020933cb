// The parts of generation: what is drawn against transformers' probabilities, text that is shown
// while it is made, caches against whole passes.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.tensor;
import tessera.collective;
import tessera.nn;
import tessera.text;

using namespace tessera;
using trainer_test::has;
using trainer_test::input_error;

namespace {

/// The parts that a text is shown in, with a bar between them.
std::string shown_in_parts(const std::vector<std::string>& parts,
                           const std::vector<std::string>& stop = {}) {
  text::StreamedText text(stop);
  std::string all;
  for (const std::string& part : parts) {
    all += text.add(part) + "|";
  }
  return all + text.finish();
}

nn::DecoderShape small_shape() {
  return {.vocab = 50,
          .dim = 16,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2,
          .ffn_dim = 24,
          .window = 3,
          .global_every = 2,
          .standard_deviation = 0.3};
}

template <class Model>
std::shared_ptr<Model> small_model() {
  auto model = std::make_shared<Model>(small_shape());
  nn::materialize(*model);
  set_seed(5);
  nn::initialize(*model);
  model->train(false);
  return model;
}

/// A model of a plugin whose layers take no cache.
class WithoutCache final : public nn::DecoderLM {
 public:
  using nn::DecoderLM::DecoderLM;
  void set_cache(nn::KeyValueCache*) override { fail("its layers take no cache"); }
};

/// Within `tolerance` of the largest of a row, or of 1.
void same_logits(const std::vector<std::vector<double>>& a,
                 const std::vector<std::vector<double>>& b, double tolerance = 1e-5) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(a[i].size() == b[i].size());
    double margin = tolerance;
    for (const double logit : b[i]) {
      margin = std::max(margin, tolerance * std::abs(logit));
    }
    for (std::size_t j = 0; j < a[i].size(); ++j) {
      CHECK(std::abs(a[i][j] - b[i][j]) <= margin);
    }
  }
}

}  // namespace

TEST_CASE("candidates have the probabilities of transformers") {
  const auto stored = nlohmann::json::parse(trainer_test::read_file(
      TESSERA_SOURCE_FOLDER "/tests/reference/data/generation/sampling.json"));
  const auto logits = stored["logits"].get<std::vector<double>>();
  const auto before = stored["before"].get<std::vector<std::int64_t>>();
  REQUIRE(stored["cases"].size() == 12);
  for (const auto& one : stored["cases"]) {
    const text::SamplingOptions options{.temperature = one["temperature"],
                                        .top_k = one["top_k"],
                                        .top_p = one["top_p"],
                                        .min_p = one["min_p"],
                                        .repetition_penalty = one["repetition_penalty"]};
    const auto expected = one["probabilities"].get<std::vector<double>>();
    std::map<std::int64_t, double> got;
    for (const text::Candidate& candidate : text::candidates(logits, {.all = before}, options)) {
      got[candidate.token] = candidate.probability;
    }
    INFO("temperature " << options.temperature << ", top_k " << options.top_k << ", top_p "
                        << options.top_p << ", min_p " << options.min_p << ", penalty "
                        << options.repetition_penalty);
    for (std::size_t token = 0; token < expected.size(); ++token) {
      const auto id = static_cast<std::int64_t>(token);
      CHECK((got.contains(id) ? got[id] : 0.0) == Approx(expected[token]).margin(1e-9));
      CHECK(got.contains(id) == (expected[token] > 0));
    }
  }
}

TEST_CASE("a choice follows the noise, and its rounding leaves no gap") {
  const std::vector<text::Candidate> three = {{4, 0.5}, {9, 0.25}, {2, 0.25}};
  CHECK(text::choose(three, 0) == 4);
  CHECK(text::choose(three, 0.49) == 4);
  CHECK(text::choose(three, 0.5) == 9);
  CHECK(text::choose(three, 0.76) == 2);
  CHECK(text::choose(three, 1) == 2);
  const text::SamplingOptions greedy{.temperature = 0};
  CHECK(text::candidates({1, 3, 2}, {}, greedy).at(0).token == 1);
  // The penalty counts for the likeliest token too.
  const std::vector<std::int64_t> before = {1};
  CHECK(text::candidates({1, 3, 2}, {.all = before}, {.temperature = 0, .repetition_penalty = 2})
            .at(0)
            .token == 2);
  CHECK(text::candidates({-1, -0.6}, {.all = before}, {.temperature = 0, .repetition_penalty = 2})
            .at(0)
            .token == 0);
  CHECK_THROWS_AS(text::candidates({1, 1e308 * 10}, {}, greedy), Error);
}

TEST_CASE("penalties and biases of single tokens are those of OpenAI's interface") {
  const std::vector<std::int64_t> all = {0, 1, 1, 2, 1};
  const text::TextTokens before{.all = all, .prompt = 2};  // generated: 1, 2, 1
  const std::vector<double> logits = {0.5, 1, 2, -1};
  const text::SamplingOptions options{.temperature = 0.5,
                                      .repetition_penalty = 2,
                                      .frequency_penalty = 0.25,
                                      .presence_penalty = 0.5,
                                      .logit_bias = {{0, 1}, {3, 3}}};
  // The bias, the penalty of all tokens so far, then those of generated ones; e^(logit / 0.5).
  const std::vector<double> expected = {(0.5 + 1) / 2, 1 / 2.0 - 2 * 0.25 - 0.5,
                                        2 / 2.0 - 0.25 - 0.5, -1 + 3};
  double sum = 0;
  for (const double logit : expected) {
    sum += std::exp(logit / 0.5);
  }
  const auto found = text::candidates(logits, before, options);
  REQUIRE(found.size() == 4);
  for (std::size_t token = 0; token < 4; ++token) {
    CHECK(found[token].probability == Approx(std::exp(expected[token] / 0.5) / sum));
  }
  has(input_error([&] { text::candidates(logits, before, {.logit_bias = {{4, 1}}}); }),
      "logit_bias: the model has no such token (expected ids from 0 to 3, got 4)");
}

TEST_CASE("likelihoods are logarithms of the softmax, the likeliest first") {
  const std::vector<double> logits = {std::log(2.0), std::log(4.0), 0, std::log(4.0), 0};
  const text::TokenLikelihoods found = text::likelihoods_of(logits, 2, 4);
  CHECK(found.own.token == 2);
  CHECK(found.own.log_probability == Approx(std::log(1.0 / 12)));
  std::vector<std::int64_t> order;
  for (const text::TokenLikelihood& one : found.likeliest) {
    order.push_back(one.token);
  }
  CHECK(order == std::vector<std::int64_t>{1, 3, 0, 2});
  CHECK(found.likeliest[0].log_probability == Approx(std::log(4.0 / 12)));
  CHECK(text::likelihoods_of(logits, 0, 100).likeliest.size() == 5);
  CHECK(text::likelihoods_of(logits, 0, 0).likeliest.empty());
  has(input_error([&] { text::likelihoods_of(logits, 5, 0); }), "the model has no such token");
}

TEST_CASE("what is drawn does not depend on the roundings of equal logits") {
  const text::SamplingOptions options{.top_k = 3, .top_p = 0.99};
  const double rounding = 1e-7;
  for (const double noise : {0.1, 0.5, 0.9}) {
    const auto drawn = [&](const std::vector<double>& logits) {
      return text::choose(text::candidates(logits, {}, options), noise);
    };
    CHECK(drawn({2, 2 + rounding, -1, 2 - rounding}) == drawn({2, 2 - rounding, -1, 2 + rounding}));
  }
}

TEST_CASE("values of sampling outside their ranges are refused") {
  const auto error = [](const text::SamplingOptions& options) {
    return input_error([&] { options.check("x"); });
  };
  CHECK(error({}).empty());
  has(error({.temperature = -1}), "x: temperature is out of range (expected 0 to 100, got -1)");
  has(error({.top_k = -1}), "top_k");
  has(error({.top_p = 0}), "top_p is out of range (expected above 0, at most 1, got 0)");
  has(error({.top_p = 1.5}), "top_p");
  has(error({.repetition_penalty = 0}), "repetition_penalty");
}

TEST_CASE("shown text has whole characters and ends before a stop string") {
  CHECK(shown_in_parts({"a", "b"}) == "a|b|");
  CHECK(shown_in_parts({"h\xC3", "\xBC", "\xF0\x9F", "\x98\x80!"}) == "h|ü||😀!|");
  // What is not UTF-8, by maximal subparts, as Python's errors="replace" does.
  CHECK(shown_in_parts({"a\xFF"
                        "b"}) == "a�b|");
  CHECK(shown_in_parts({"\xE2\x82", "x"}) == "|�x|");
  CHECK(shown_in_parts({"\xE0\x80\xED\xA0\x80"}) == "�����|");
  CHECK(shown_in_parts({"\xF0\x9F\x98"}) == "|�");
  CHECK(shown_in_parts({"\xC0\x80\xF5"}) == "���|");
  // A stop string may begin anywhere, and in several parts.
  const std::vector<std::string> stop = {"\n\n", "END"};
  CHECK(shown_in_parts({"a\n", "b"}, stop) == "a|\nb|");
  CHECK(shown_in_parts({"a\n", "\nb", "c"}, stop) == "a|||");
  CHECK(shown_in_parts({"aE", "N", "Db", "c"}, stop) == "a||||");
  CHECK(shown_in_parts({"aEN", "E"}, stop) == "a|EN|E");
  CHECK(shown_in_parts({"aE", "EN", "D"}, stop) == "a|E||");
  CHECK(shown_in_parts({"aENDb\n\n"}, stop) == "a|");
  CHECK(shown_in_parts({"EN"}, stop) == "|EN");
  CHECK(shown_in_parts({"x\xC3", "\xBC"}, {"ü"}) == "x||");
  has(input_error([] { text::StreamedText({"a", ""}); }), "stop string: it is empty");
}

TEST_CASE("the likelihood of tokens is that of transformers") {
  const std::string folders = TESSERA_SOURCE_FOLDER "/tests/reference/data/folders/";
  for (const std::string name : {"plain", "tied", "head_dim"}) {
    INFO(name);
    const auto stored =
        nlohmann::json::parse(trainer_test::read_file(folders + name + "/expected.json"));
    const text::TextModel model(folders + name);
    double sum = 0;
    std::int64_t count = 0;
    for (const auto& row : stored["input_ids"]) {
      const auto ids = row.get<std::vector<std::int64_t>>();
      const std::vector<std::uint8_t> all(ids.size(), 1);
      const double whole = text::log_likelihood(model, ids, all);
      double of_each = 0;
      text::Engine engine(model.ranks(), model.shape().vocab);
      std::size_t scored = 0;
      engine.submit(
          {.prompt = ids, .tokens = 0, .scored = {.likeliest = 1, .take = [&](const auto& one) {
                                                    ++scored;
                                                    of_each += one.own.log_probability;
                                                    CHECK(one.likeliest.at(0).log_probability >=
                                                          one.own.log_probability);
                                                  }}});
      while (engine.step()) {
      }
      CHECK(scored + 1 == ids.size());
      CHECK(of_each == Approx(whole));
      sum += whole;
      count += std::ssize(ids) - 1;
      // The parts of the sum, each after all tokens before it.
      double parts = 0;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        std::vector<std::uint8_t> one(ids.size(), 0);
        one[i] = 1;
        parts += text::log_likelihood(model, ids, one);
      }
      CHECK(parts == Approx(whole).epsilon(1e-5));
    }
    CHECK(-sum / static_cast<double>(count) == Approx(stored["loss"].get<double>()).epsilon(1e-5));
  }
}

TEST_CASE("the logits of every family are those of transformers, with a cache and without") {
  const std::string data = TESSERA_SOURCE_FOLDER "/tests/reference/data/";
  const auto stored =
      nlohmann::json::parse(trainer_test::read_file(data + "generation/logits.json"));
  REQUIRE(stored.size() == 11);
  for (const auto& family : stored) {
    const auto folder = family["folder"].get<std::string>();
    INFO(folder);
    const text::TextModel model(data + folder);
    const auto tokens = family["tokens"].get<std::vector<std::int64_t>>();
    text::Decoding cached(model.ranks(), model.shape().vocab);
    std::vector<std::vector<double>> whole;
    std::vector<std::vector<double>> grown;
    for (std::size_t length = 1; length <= tokens.size(); ++length) {
      const text::TokenRows rows = {
          {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(length)}};
      grown.push_back(cached.next(rows).at(0));
      whole.push_back(text::Decoding(model.ranks(), model.shape().vocab).next(rows).at(0));
    }
    const auto expected = family["logits"].get<std::vector<std::vector<double>>>();
    same_logits(whole, expected);
    same_logits(grown, expected);
  }
}

TEST_CASE("ranks that have parts of a model compute its logits and losses together") {
  const std::string data = TESSERA_SOURCE_FOLDER "/tests/reference/data/";
  // Two heads of keys and values, and four.
  for (const std::string name : {"decoders/qwen3", "decoders/gemma3", "folders/head_dim"}) {
    INFO(name);
    const text::TextModel whole(data + name);
    const std::int64_t vocab = whole.shape().vocab;
    const std::vector<std::int64_t> ids = {3, 1, 4, 15, 9, 2, 6, 5, 35, 8, 9, 63};
    const auto computed = [&](text::ModelRanks& ranks) {
      std::vector<std::vector<double>> all;
      text::Decoding decoding(ranks, vocab);
      for (const std::size_t length : {5, 6, 7, 12}) {  // the cache grows
        all.push_back(decoding.next({{ids.begin(), ids.begin() + length}}).at(0));
      }
      all.push_back({ranks.loss_sum(std::span(ids).first(11), std::span(ids).subspan(1))});
      all.push_back(decoding.next({{7, 8}}).at(0));  // another text
      return all;
    };
    const std::vector<std::vector<double>> expected = computed(whole.ranks());
    std::array<std::int64_t, 4> bytes{};
    std::array<std::vector<std::vector<double>>, 2> got;
    collective::run_threads(4, [&](collective::World& world) {
      const text::TextModel part(data + name, {.copies = 2, .split = 2}, world);
      bytes.at(static_cast<std::size_t>(world.rank())) = part.parameter_bytes();
      if (!part.ranks().leads()) {
        part.ranks().follow();
        return;
      }
      got.at(static_cast<std::size_t>(world.rank() / 2)) = computed(part.ranks());
      part.ranks().dismiss();
    });
    same_logits(got[0], expected);
    CHECK(got[1] == got[0]);
    // Norms are on both ranks, all else on one.
    CHECK(bytes[0] + bytes[1] > whole.parameter_bytes());
    CHECK(bytes[0] + bytes[1] < whole.parameter_bytes() * 21 / 20);
    CHECK(bytes[2] == bytes[0]);
    CHECK(bytes[3] == bytes[1]);
    CHECK(text::check_split(data + name, {.copies = 2, .split = 2}) == bytes[0]);
  }
}

TEST_CASE("ranks that have parts of a model, or of texts, continue several texts together") {
  const std::string data = TESSERA_SOURCE_FOLDER "/tests/reference/data/decoders/qwen3";
  const std::vector<std::vector<std::int64_t>> prompts = {
      {3, 1, 4, 15, 9, 2, 6, 5, 35, 8, 9, 63, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {7}, {3, 1, 4, 15}};
  const auto logits_of = [&](const text::TextModel& model) {
    // Four for each prompt, and the likelihoods of its own tokens.
    std::vector<std::vector<double>> all(prompts.size() * 5);
    text::Engine engine(model.ranks(), model.shape().vocab, {.prompt_tokens = 8});
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      engine.submit(
          {.prompt = prompts[i],
           .tokens = 4,
           .scored = {.likeliest = 1,
                      .take =
                          [&all, i](const text::TokenLikelihoods& one) {
                            all[all.size() / 5 * 4 + i].push_back(one.own.log_probability);
                          }},
           .next =
               [&all, i, written = std::size_t{0}](const std::vector<double>& logits) mutable {
                 all[i * 4 + written++] = logits;
                 return std::optional<std::int64_t>(5 + written);
               },
           .ended = nullptr});
    }
    while (engine.step()) {
    }
    return all;
  };
  const auto expected = logits_of(text::TextModel(data));
  CHECK(std::ranges::count_if(expected, [](const auto& row) { return row.empty(); }) == 1);
  for (const text::RankGrid grid : {text::RankGrid{.split = 2}, text::RankGrid{.context = 2}}) {
    INFO(grid.split << " parts of the model, " << grid.context << " of texts");
    std::vector<std::vector<double>> got;
    collective::run_threads(2, [&](collective::World& world) {
      const text::TextModel part({data}, grid, world);
      if (!part.ranks().leads()) {
        part.ranks().follow();
        return;
      }
      got = logits_of(part);
      part.ranks().dismiss();
    });
    same_logits(got, expected);
  }
}

TEST_CASE("each position is kept by one rank, and parts grow evenly") {
  for (const std::int64_t ranks : {1, 2, 3, 4}) {
    const nn::PositionParts parts{.ranks = ranks};
    std::vector<std::int64_t> kept(static_cast<std::size_t>(ranks), 0);  // by counting owners
    for (std::int64_t length = 0; length < 5 * nn::PositionParts::block; ++length) {
      std::int64_t fewest = length;
      std::int64_t most = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const std::int64_t own = parts.kept(rank, length);
        REQUIRE(own == kept[static_cast<std::size_t>(rank)]);
        fewest = std::min(fewest, own);
        most = std::max(most, own);
      }
      REQUIRE(most - fewest <= nn::PositionParts::block);
      ++kept[static_cast<std::size_t>(parts.owner(length))];
    }
    // Runs of a range are its positions, each where its rank has it.
    std::vector<std::int64_t> runs_of(400, 0);
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      for (const nn::PositionRun& run : parts.runs(rank, 50, 333)) {
        for (std::int64_t i = 0; i < run.count; ++i) {
          REQUIRE(parts.owner(run.position + i) == rank);
          REQUIRE(parts.kept(rank, run.position + i) == run.place + i);
          ++runs_of[static_cast<std::size_t>(run.position + i)];
        }
      }
    }
    for (std::size_t position = 0; position < runs_of.size(); ++position) {
      REQUIRE(runs_of[position] == (position >= 50 && position < 333 ? 1 : 0));
    }
  }
}

TEST_CASE("ranks that keep parts of a text compute its logits and losses together") {
  const std::string data = TESSERA_SOURCE_FOLDER "/tests/reference/data/";
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < 330; ++i) {
    ids.push_back((7 * i + i / 5 + i * i % 11) % 60);
  }
  struct Case {
    std::string name;
    text::RankGrid grid;
  };
  // Fewer heads of keys than ranks; windows, soft caps, norms of queries; rotary embeddings of
  // every kind, learned positions; experts; layers that are split too; copies.
  std::vector<Case> cases;
  for (const char* const name :
       {"decoders/llama3", "decoders/mistral", "decoders/qwen2", "decoders/qwen3",
        "decoders/gemma2", "decoders/gemma3", "decoders/phi3", "decoders/qwen3_moe", "gpt2/tied",
        "mixtral/four", "folders/sharded_files"}) {
    cases.push_back({name, {.context = 2}});
    cases.push_back({name, {.context = 4}});
  }
  cases.push_back({"decoders/gemma3", {.context = 2, .split = 2}});
  cases.push_back({"decoders/qwen3", {.copies = 2, .context = 2}});
  for (const auto& [name, grid] : cases) {
    INFO(name << ", " << grid.context << " x " << grid.split);
    const text::TextModel whole(data + name);
    const std::int64_t vocab = whole.shape().vocab;
    const std::int64_t longest = whole.longest() > 0 ? whole.longest() : std::ssize(ids);
    std::vector<std::int64_t> lengths;  // chunks of all ranks, single tokens, a rest
    for (const std::int64_t length : {1, 2, 19, 20, 131, 132, 135, 203, 204, 325, 330}) {
      if (length <= longest) {
        lengths.push_back(length);
      }
    }
    const auto row = [&](std::int64_t length, std::int64_t first) {
      std::vector<std::int64_t> tokens(ids.begin(), ids.begin() + length);
      tokens[0] = first;
      return tokens;
    };
    const auto computed = [&](text::ModelRanks& ranks) {
      std::vector<std::vector<double>> all;
      text::Decoding decoding(ranks, vocab);
      for (const std::int64_t length : lengths) {
        for (const auto& logits : decoding.next({row(length, 3), row(length, 4)})) {
          all.push_back(logits);
        }
      }
      const std::vector<std::int64_t> text = row(std::min<std::int64_t>(longest, 101), 3);
      all.push_back(
          {ranks.loss_sum(std::span(text).first(text.size() - 1), std::span(text).subspan(1))});
      all.push_back(decoding.next({{7, 8}}).at(0));  // another text
      return all;
    };
    const std::vector<std::vector<double>> expected = computed(whole.ranks());
    std::vector<std::vector<std::vector<double>>> got(static_cast<std::size_t>(grid.copies));
    collective::run_threads(
        grid.ranks(), [&, of = data + name, ranks = grid](collective::World& world) {
          const text::TextModel part(of, ranks, world);
          if (!part.ranks().leads()) {
            part.ranks().follow();
            return;
          }
          got.at(static_cast<std::size_t>(world.rank() / ranks.of_copy())) = computed(part.ranks());
          part.ranks().dismiss();
        });
    for (const auto& of_copy : got) {
      same_logits(of_copy, expected, 2e-6);
    }
    static_cast<void>(text::check_split(data + name, grid));
  }
}

TEST_CASE("each rank of a split cache keeps its part of the memory") {
  std::vector<std::int64_t> ids(4096, 1);
  std::map<int, std::vector<std::int64_t>> bytes;
  for (const int ranks : {1, 2, 4}) {
    bytes[ranks].resize(static_cast<std::size_t>(ranks));
    collective::run_threads(ranks, [&](collective::World& world) {
      const text::TextModel model({TESSERA_SOURCE_FOLDER "/tests/reference/data/decoders/qwen3"},
                                  {.context = ranks}, world);
      if (model.ranks().leads()) {
        text::Decoding decoding(model.ranks(), model.shape().vocab);
        static_cast<void>(decoding.next({ids}));
        model.ranks().dismiss();
      } else {
        model.ranks().follow();
      }
      bytes[ranks].at(static_cast<std::size_t>(world.rank())) = model.ranks().cache_bytes();
    });
  }
  // Keys and values of 4096 tokens: 3 layers, 2 heads of 12 numbers.
  const std::int64_t whole_bytes = 2 * 4096 * 3 * 2 * 12 * 4;
  REQUIRE(bytes[1] == std::vector<std::int64_t>{whole_bytes});
  CHECK(bytes[2] == std::vector<std::int64_t>(2, whole_bytes / 2));
  CHECK(bytes[4] == std::vector<std::int64_t>(4, whole_bytes / 4));
}

TEST_CASE("copies join what each of them has computed") {
  for (std::int64_t count = 0; count < 8; ++count) {
    INFO(count << " items");
    std::vector<double> values;
    std::vector<std::string> texts;
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back(0.1 * static_cast<double>(i + 1));
      texts.push_back(std::string(static_cast<std::size_t>(7 - i), 'x') + "ü\n");
    }
    std::array<std::vector<double>, 3> got;
    std::array<std::vector<std::string>, 3> got_texts;
    std::array<int, 3> first{};
    collective::run_threads(6, [&](collective::World& world) {
      const text::Copies copies({.copies = 3, .split = 2}, world);
      if (world.rank() % 2 != 0) {
        return;  // another rank of a copy
      }
      const auto copy = static_cast<std::size_t>(world.rank() / 2);
      first.at(copy) = copies.is_first() ? 1 : 0;
      std::vector<double> own = values;
      std::vector<std::string> own_texts = texts;
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (i % 3 != copy) {
          own[i] = 99;
          own_texts[i] = "of another copy";
        }
      }
      got.at(copy) = copies.joined(own);
      got_texts.at(copy) = copies.joined(own_texts);
    });
    CHECK(first == std::array<int, 3>{1, 0, 0});
    for (std::size_t copy = 0; copy < 3; ++copy) {
      CHECK(got.at(copy) == values);
      CHECK(got_texts.at(copy) == texts);
    }
  }
}

TEST_CASE("a cache gives the logits of whole rows, whatever came before") {
  const auto model = small_model<nn::DecoderLM>();
  const auto whole = small_model<WithoutCache>();
  text::ModelRanks model_ranks(*model);
  text::ModelRanks whole_ranks(*whole);
  text::Decoding cached(model_ranks, 50);
  text::Decoding slow(whole_ranks, 50);
  CHECK(cached.slow_because().empty());
  has(slow.slow_because(), "its layers take no cache");
  text::TokenRows rows = {{3, 1, 4}, {15, 9, 2}};
  for (int i = 0; i < 6; ++i) {
    same_logits(cached.next(rows), slow.next(rows));
    rows[0].push_back(5 + i);
    rows[1].push_back(35 - i);
  }
  // Several tokens at once, the same rows again, other rows, fewer and shorter ones.
  rows[0].insert(rows[0].end(), {7, 8});
  rows[1].insert(rows[1].end(), {9, 10});
  same_logits(cached.next(rows), slow.next(rows));
  same_logits(cached.next(rows), slow.next(rows));
  rows[1][2] = 44;
  rows[0].push_back(1);
  rows[1].push_back(1);
  same_logits(cached.next(rows), slow.next(rows));
  same_logits(cached.next({rows[1]}), slow.next({rows[1]}));
  same_logits(cached.next({{6}}), slow.next({{6}}));
  CHECK_THROWS_AS(cached.next({}), Error);
  CHECK_THROWS_AS(cached.next({{1, 2}, {1}}), Error);
  CHECK_THROWS_AS(cached.next({{1, 99}}), Error);
  same_logits(cached.next({{1, 2}}), slow.next({{1, 2}}));
}
