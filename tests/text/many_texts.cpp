// Many texts at once: each has the bits that it has alone, whatever joins, leaves and is kept.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.nn;
import tessera.hub;
import tessera.text;

using namespace tessera;

namespace {

constexpr std::int64_t vocab = 41;

using Tokens = std::vector<std::int64_t>;
using Logits = std::vector<std::vector<double>>;
using Random = std::mt19937_64;

nn::DecoderShape dense() {
  return {.vocab = vocab,
          .dim = 24,
          .layers = 3,
          .heads = 6,
          .kv_heads = 2,
          .ffn_dim = 37,
          .standard_deviation = 0.3};
}

nn::DecoderShape windows() {
  nn::DecoderShape shape = dense();
  shape.window = 9;
  shape.global_every = 2;
  shape.attention_softcap = 4;
  shape.query_key_norm = nn::HeadNorm::shared;
  return shape;
}

nn::DecoderShape chunks_and_sinks() {
  nn::DecoderShape shape = dense();
  shape.chunk = 12;
  shape.global_layers = {1};
  shape.sinks = true;
  return shape;
}

nn::DecoderShape latent() {
  nn::DecoderShape shape = dense();
  shape.kv_heads = 6;
  shape.latent_rank = 8;
  shape.plain_dim = 4;
  shape.rotated_dim = 2;
  shape.value_dim = 5;
  return shape;
}

nn::DecoderShape experts() {
  nn::DecoderShape shape = dense();
  shape.experts = 5;
  shape.experts_per_token = 2;
  shape.expert_dim = 11;
  return shape;
}

nn::DecoderShape recurrent(nn::RecurrentRule rule) {
  nn::DecoderShape shape = dense();
  shape.layer_pattern = "ra";
  shape.recurrent.rule = rule;
  shape.recurrent.key_heads = 2;
  shape.recurrent.value_heads = 4;
  shape.recurrent.key_dim = 3;
  shape.recurrent.value_dim = 5;
  shape.recurrent.kernel = 3;
  return shape;
}

/// Layers that use keys and values of others, streams, and embeddings of layers.
nn::DecoderShape linked() {
  nn::DecoderShape shape = windows();
  shape.attention_softcap = 0;
  shape.layers = 4;
  shape.shared_key_layers = 2;
  shape.norm_results = true;
  shape.value_norm = true;
  shape.global_heads = {.head_dim = 6, .kv_heads = 1, .keys_as_values = true, .rotary_share = 0.5};
  shape.streams = {.count = 3, .active = 1};
  shape.residual_rank = 3;
  shape.layer_embedding_dim = 5;
  shape.layer_embedding_vocab = 30;
  shape.gate_sparsity = {0.6, 0, 0.3, 0};
  shape.wide_shared_layers = true;
  return shape;
}

struct Kind {
  const char* name;
  nn::DecoderShape shape;
};
std::vector<Kind> kinds() {
  return {{"dense", dense()},
          {"windows", windows()},
          {"chunks and sinks", chunks_and_sinks()},
          {"latent", latent()},
          {"experts", experts()},
          {"linked layers", linked()},
          {"delta rule", recurrent(nn::RecurrentRule::delta)},
          {"sums", recurrent(nn::RecurrentRule::sum)},
          {"convolutions", recurrent(nn::RecurrentRule::convolution)}};
}

std::shared_ptr<nn::DecoderLM> filled(const nn::DecoderShape& shape) {
  auto model = std::make_shared<nn::DecoderLM>(shape);
  set_seed(11);
  nn::materialize(*model);
  nn::initialize(*model);
  model->train(false);
  return model;
}

Tokens random_tokens(Random& random, std::size_t count) {
  Tokens tokens(count);
  for (std::int64_t& token : tokens) {
    token = static_cast<std::int64_t>(random() % vocab);
  }
  return tokens;
}

/// A text and what is made of it: the likeliest tokens, and the logits of each.
struct Text {
  Tokens prompt;
  std::int64_t tokens = 0;  // that follow
  Tokens written = {};
  Logits logits = {};
  bool ended = false;
  bool failed = false;

  text::EngineRequest request() {
    return {.prompt = prompt,
            .tokens = tokens,
            .next =
                [this](const std::vector<double>& values) {
                  logits.push_back(values);
                  written.push_back(std::ranges::max_element(values) - values.begin());
                  return std::optional(written.back());
                },
            .ended =
                [this](const std::exception* error) {
                  ended = true;
                  failed = error != nullptr;
                }};
  }
};

/// The same text, read in one piece by a model of its own, and nothing else.
Text alone(const nn::DecoderShape& shape, const Text& of) {
  const auto model = filled(shape);
  text::ModelRanks ranks(*model);
  text::Engine engine(ranks, vocab, {.most = 1, .prompt_tokens = 1000});
  Text text{.prompt = of.prompt, .tokens = of.tokens};
  engine.submit(text.request());
  while (engine.step()) {
  }
  REQUIRE(text.ended);
  REQUIRE(!text.failed);
  return text;
}

/// Prompts of which some begin with others, of 1 to 70 tokens.
std::vector<Text> random_texts(Random& random, std::size_t count) {
  const Tokens shared = random_tokens(random, 40);
  std::vector<Text> texts;
  for (std::size_t i = 0; i < count; ++i) {
    Tokens prompt = random_tokens(random, 1 + random() % 30);
    if (random() % 2 == 0) {
      prompt.insert(prompt.begin(), shared.begin(), shared.end());
    }
    texts.push_back(
        {.prompt = std::move(prompt), .tokens = 1 + static_cast<std::int64_t>(random() % 12)});
  }
  return texts;
}

void same_bits(const Text& a, const Text& b) {
  CHECK(a.written == b.written);
  CHECK(a.logits == b.logits);
}

/// Joins and leaves at random. Every seventh text leaves before its end.
void run_at_random(text::Engine& engine, std::span<Text> texts, Random& random) {
  std::map<std::size_t, std::int64_t> leaving;  // requests by text
  std::size_t next = 0;
  while (next < texts.size() || engine.size() > 0) {
    while (next < texts.size() && (engine.size() == 0 || random() % 3 > 0)) {
      const std::int64_t number = engine.submit(texts[next].request());
      if (next % 7 == 6) {
        leaving[next] = number;
      }
      ++next;
    }
    engine.step();
    if (!leaving.empty() && random() % 2 == 0) {
      engine.cancel(leaving.begin()->second);
      leaving.erase(leaving.begin());
    }
  }
}

std::int64_t bytes_of_text(text::ModelRanks& ranks, std::int64_t tokens) {
  const text::TextBytes bytes = ranks.text_bytes();
  return 2 * bytes.state + bytes.position * tokens;
}

}  // namespace

TEST_CASE(
    "texts among many others, joined, left and interrupted, have the bits that they have alone") {
  Random random(3);
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    const auto model = filled(kind.shape);
    std::vector<Text> texts = random_texts(random, 24);
    text::ModelRanks ranks(*model);
    // Room for about five texts: some have to give theirs back.
    text::Engine engine(ranks, vocab,
                        {.most = 64,
                         .memory = 5 * bytes_of_text(ranks, 90),
                         .prompt_tokens = 5 + static_cast<std::int64_t>(random() % 40)});
    run_at_random(engine, texts, random);
    std::size_t whole = 0;
    for (const Text& text : texts) {
      const Text expected = alone(kind.shape, text);
      CHECK(!text.failed);
      if (text.ended) {
        same_bits(text, expected);
        ++whole;
      } else {
        CHECK(std::ranges::equal(text.written,
                                 std::span(expected.written).first(text.written.size())));
      }
    }
    CHECK(whole >= 20);
    const text::EngineCounts counts = engine.counts();
    CHECK(counts.computing == 0);
    CHECK(counts.waiting == 0);
    if (ranks.text_bytes().state == 0) {
      CHECK(counts.pages == 0);
      CHECK(counts.kept > 0);
    }
  }
}

TEST_CASE("the likelihoods of a prompt have the same bits alone and among others") {
  Random random(23);
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    const auto model = filled(kind.shape);
    text::ModelRanks ranks(*model);
    struct Scored {
      Text text;
      std::int64_t first = 1;
      std::vector<double> values = {};  // of each token, and of the two likeliest
      text::EngineRequest request() {
        text::EngineRequest made = text.request();
        made.scored = {.first = first, .likeliest = 2, .take = [this](const auto& one) {
                         values.push_back(static_cast<double>(one.own.token));
                         values.push_back(one.own.log_probability);
                         for (const text::TokenLikelihood& other : one.likeliest) {
                           values.push_back(other.log_probability);
                         }
                       }};
        return made;
      }
    };
    std::vector<Scored> all;
    for (Text& text : random_texts(random, 16)) {
      const auto size = std::ssize(text.prompt);
      text.tokens = static_cast<std::int64_t>(random() % 3);
      all.push_back(
          {.text = std::move(text), .first = 1 + static_cast<std::int64_t>(random()) % (size + 2)});
      all.back().first = std::max<std::int64_t>(all.back().first, 1);
    }
    // Room for about five texts, and one after the other.
    text::Engine together(ranks, vocab,
                          {.most = 8, .memory = 5 * bytes_of_text(ranks, 90), .prompt_tokens = 11});
    for (Scored& one : all) {
      together.submit(one.request());
    }
    while (together.step()) {
    }
    for (const Scored& one : all) {
      Scored alone{.text = {.prompt = one.text.prompt, .tokens = one.text.tokens},
                   .first = one.first};
      const auto own = filled(kind.shape);
      text::ModelRanks own_ranks(*own);
      text::Engine engine(own_ranks, vocab, {.most = 1, .prompt_tokens = 1000});
      engine.submit(alone.request());
      while (engine.step()) {
      }
      CHECK(one.text.ended);
      CHECK(!one.text.failed);
      CHECK(one.values == alone.values);
      same_bits(one.text, alone.text);
      const std::int64_t scored =
          std::max<std::int64_t>(std::ssize(one.text.prompt) - one.first, 0);
      CHECK(std::ssize(one.values) == 4 * scored);
      // Beside what the model says without the engine.
      if (scored > 0) {
        const auto expected = own_ranks.likelihoods(one.text.prompt, 2);
        for (std::size_t i = 0; i < static_cast<std::size_t>(scored); ++i) {
          const auto& likelihood = expected.at(static_cast<std::size_t>(one.first) - 1 + i);
          CHECK(one.values[4 * i] == static_cast<double>(likelihood.own.token));
          CHECK(one.values[4 * i + 1] == Approx(likelihood.own.log_probability).margin(5e-4));
          CHECK(one.values[4 * i + 2] ==
                Approx(likelihood.likeliest[0].log_probability).margin(5e-4));
        }
      }
    }
  }
}

TEST_CASE("requests that begin alike wait for the one that reads their beginning") {
  const auto model = filled(dense());
  text::ModelRanks ranks(*model);
  text::Engine engine(ranks, vocab, {.most = 8, .prompt_tokens = 16});
  Random random(2);
  const Tokens shared = random_tokens(random, 70);
  std::vector<Text> texts;
  for (std::int64_t i = 0; i < 6; ++i) {
    Tokens prompt = shared;
    prompt.insert(prompt.end(), {i, i, 1});
    texts.push_back({.prompt = prompt, .tokens = 4});
  }
  // One that begins otherwise does not wait.
  texts.push_back({.prompt = random_tokens(random, 20), .tokens = 4});
  for (Text& text : texts) {
    engine.submit(text.request());
  }
  engine.step();
  CHECK(engine.counts().computing == 2);
  while (engine.step()) {
  }
  for (const Text& text : texts) {
    CHECK(text.ended);
    same_bits(text, alone(dense(), text));
  }
  // The beginning was read once: 4 pages of it, and what is behind them six times.
  CHECK(engine.counts().read == 20 + 73 + 5 * (73 - 64));
  CHECK(engine.counts().kept == 5 * 64);
}

TEST_CASE("a function of one request may cancel another one of the same step") {
  const auto model = filled(dense());
  text::ModelRanks ranks(*model);
  text::Engine engine(ranks, vocab, {.most = 8});
  std::vector<Text> texts;
  Random random(4);
  for (std::size_t i = 0; i < 3; ++i) {
    texts.push_back({.prompt = random_tokens(random, 9 + i), .tokens = 6});
  }
  std::int64_t second = 0;
  text::EngineRequest first = texts[0].request();
  const auto next = first.next;
  first.next = [&](const std::vector<double>& logits) {
    if (texts[0].written.size() == 2) {
      engine.cancel(second);
    }
    return next(logits);
  };
  engine.submit(std::move(first));
  second = engine.submit(texts[1].request());
  engine.submit(texts[2].request());
  while (engine.step()) {
  }
  CHECK(texts[1].written.size() == 2);
  CHECK(!texts[1].ended);
  same_bits(texts[0], alone(dense(), texts[0]));
  same_bits(texts[2], alone(dense(), texts[2]));
}

TEST_CASE("a text that continues the last one has the same bits, and is not read again") {
  Random random(5);
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    const auto model = filled(kind.shape);
    text::ModelRanks ranks(*model);
    text::Engine engine(ranks, vocab, {.most = 2});
    Text first{.prompt = random_tokens(random, 50), .tokens = 9};
    engine.submit(first.request());
    while (engine.step()) {
    }
    Tokens longer = first.prompt;
    longer.insert(longer.end(), first.written.begin(), first.written.end());
    longer.push_back(7);
    Text second{.prompt = longer, .tokens = 5};
    engine.submit(second.request());
    while (engine.step()) {
    }
    same_bits(second, alone(kind.shape, second));
    CHECK(engine.counts().kept >= 48);
    // What others compute in between is noticed: nothing of it is taken for a text's.
    text::Decoding(ranks, vocab).next({{1, 2, 3}});
    Text third{.prompt = longer, .tokens = 3};
    engine.submit(third.request());
    while (engine.step()) {
    }
    same_bits(third, alone(kind.shape, third));
  }
}

TEST_CASE("a step computes what decoding does") {
  Random random(8);
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    const auto model = filled(kind.shape);
    const Text text = alone(kind.shape, {.prompt = random_tokens(random, 37), .tokens = 6});
    text::ModelRanks ranks(*model);
    text::Decoding decoding(ranks, vocab);
    Tokens tokens = text.prompt;
    for (std::size_t i = 0; i < text.written.size(); ++i) {
      const std::vector<double> expected = decoding.next({tokens}).at(0);
      for (std::size_t token = 0; token < expected.size(); ++token) {
        CHECK(text.logits[i][token] == Approx(expected[token]).margin(1e-4));
      }
      tokens.push_back(text.written[i]);
    }
  }
}

TEST_CASE("a position has the memory of what layers keep of it") {
  const auto bytes = [](const nn::DecoderShape& shape) {
    const auto model = filled(shape);
    text::ModelRanks ranks(*model);
    return ranks.text_bytes().position;
  };
  const std::int64_t f32 = 4;
  CHECK(bytes(dense()) == 3 * 2 * (4 + 4) * f32);
  // Latent features and the rotated part of keys, not the keys and values of 6 heads.
  CHECK(bytes(latent()) == 3 * (8 + 2) * f32);
  // Of a layer with a window, and of one without; the other two keep nothing.
  CHECK(bytes(linked()) == (2 * (4 + 4) + (6 + 6)) * f32);
}

TEST_CASE("what is wrong with a request is said to it alone") {
  const auto model = filled(dense());
  text::ModelRanks ranks(*model);
  text::Engine engine(ranks, vocab, {.memory = bytes_of_text(ranks, 64)});
  Text good{.prompt = {1, 2, 3}, .tokens = 20};
  Text bad{.prompt = {4, 5}, .tokens = 20};
  text::EngineRequest request = bad.request();
  request.next = [](const std::vector<double>&) -> std::optional<std::int64_t> {
    throw std::runtime_error("it cannot go on");
  };
  Text unwanted{.prompt = {6}, .tokens = 20};
  text::EngineRequest leaves = unwanted.request();
  int asked = 0;
  leaves.wanted = [&] { return ++asked < 5; };
  engine.submit(good.request());
  engine.submit(std::move(request));
  engine.submit(std::move(leaves));
  while (engine.step()) {
  }
  CHECK(!good.failed);
  same_bits(good, alone(dense(), good));
  CHECK(bad.failed);
  CHECK(unwanted.ended);
  CHECK(!unwanted.failed);
  CHECK(unwanted.written.size() < 5);
  CHECK(engine.counts().pages == 0);
  const auto problem = [&](Tokens prompt, std::int64_t tokens) {
    return testing::error_of(
        [&] { engine.submit(Text{.prompt = std::move(prompt), .tokens = tokens}.request()); });
  };
  CHECK(problem({}, 1).find("no tokens") != std::string::npos);
  CHECK(problem({vocab}, 1).find("does not have a token") != std::string::npos);
  CHECK(problem({1}, 65).find("too little room for the keys") != std::string::npos);
  CHECK(problem({1}, 64) == "no error");
  CHECK(testing::error_of([&] {
          text::Engine(ranks, vocab, {.memory = 1});
        }).find("no room for a text") != std::string::npos);
}

TEST_CASE(
    "short requests do not wait for a long prompt, and who came first is not overtaken for ever") {
  const auto model = filled(dense());
  text::ModelRanks ranks(*model);
  text::Engine engine(ranks, vocab, {.most = 4, .prompt_tokens = 32});
  Random random(1);
  Text long_one{.prompt = random_tokens(random, 400), .tokens = 2};
  Text short_one{.prompt = random_tokens(random, 4), .tokens = 3};
  engine.submit(long_one.request());
  engine.step();
  engine.submit(short_one.request());
  for (int i = 0; i < 4; ++i) {
    engine.step();
  }
  CHECK(short_one.ended);
  CHECK(long_one.written.empty());
  while (engine.step()) {
  }
  CHECK(long_one.ended);
}

namespace {

/// Updates of all Linear layers, or of those but `without`, that change texts much.
std::vector<hub::LayerUpdate> random_updates(nn::Module& model, std::uint64_t seed,
                                             const std::string& without = "") {
  Random random(seed);
  const auto values = [&](std::int64_t rows, std::int64_t columns) {
    std::vector<float> all(static_cast<std::size_t>(rows * columns));
    std::normal_distribution<float> normal(0, 0.4F);
    std::ranges::generate(all, [&] { return normal(random); });
    return from_values(std::span<const float>(all), {rows, columns});
  };
  std::vector<hub::LayerUpdate> updates;
  for (nn::Module* const module : nn::all_modules(model)) {
    if (dynamic_cast<nn::Linear*>(module) == nullptr ||
        (!without.empty() && module->name().ends_with(without))) {
      continue;
    }
    const Dims& shape = module->parameter("weight")->value.shape();
    const auto rank = 1 + static_cast<std::int64_t>(random() % 5);
    updates.push_back({.layer = module->name(),
                       .scale = 0.5,
                       .a = values(rank, shape[1]),
                       .b = values(shape[0], rank)});
  }
  return updates;
}

/// A model of which texts may have adapters 1 and 2.
struct Adapted {
  explicit Adapted(const Kind& kind, const text::EngineOptions& options)
      : model(filled(kind.shape)),
        ranks(*model, nullptr, {}, -1, std::nullopt, std::make_unique<text::AdapterLayers>(*model)),
        engine(ranks, vocab, options) {
    // A model that keeps latent features computes no keys of them.
    const std::string without = kind.shape.latent_rank > 0 ? "kv_b_proj" : "";
    for (const std::int64_t number : {1, 2}) {
      ranks.add_adapter(number, random_updates(*model, static_cast<std::uint64_t>(number), without),
                        "a");
    }
  }
  std::shared_ptr<nn::DecoderLM> model;
  text::ModelRanks ranks;
  text::Engine engine;
};

}  // namespace

TEST_CASE("texts of several adapters have the bits that they have alone") {
  Random random(29);
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    std::vector<Text> texts = random_texts(random, 12);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      texts[i].prompt = texts[i / 3 * 3].prompt;  // equal ones, each with another adapter
      texts[i].tokens = 6;
    }
    Adapted together(kind, {.most = 64, .prompt_tokens = 23});
    for (std::size_t i = 0; i < texts.size(); ++i) {
      text::EngineRequest request = texts[i].request();
      request.adapter = static_cast<std::int64_t>(i % 3);
      together.engine.submit(std::move(request));
      together.engine.step();
    }
    while (together.engine.step()) {
    }
    for (std::size_t i = 0; i < texts.size(); ++i) {
      INFO("text " << i);
      Text own{.prompt = texts[i].prompt, .tokens = texts[i].tokens};
      Adapted one(kind, {.most = 1, .prompt_tokens = 1000});
      text::EngineRequest request = own.request();
      request.adapter = static_cast<std::int64_t>(i % 3);
      one.engine.submit(std::move(request));
      while (one.engine.step()) {
      }
      REQUIRE(texts[i].ended);
      CHECK(!texts[i].failed);
      same_bits(texts[i], own);
      if (i % 3 == 0) {
        same_bits(own, alone(kind.shape, own));
      } else {
        CHECK(own.logits != texts[i / 3 * 3].logits);
        CHECK((i % 3 == 1 || own.logits != texts[i - 1].logits));
      }
    }
  }
}

TEST_CASE("an adapter that is dropped is forgotten, and its layers must be the model's") {
  const Kind kind{"dense", dense()};
  Adapted adapted(kind, {.most = 4});
  Random random(31);
  const Tokens prompt = random_tokens(random, 20);
  const auto written = [&](std::int64_t adapter) {
    Text text{.prompt = prompt, .tokens = 3};
    text::EngineRequest request = text.request();
    request.adapter = adapter;
    adapted.engine.submit(std::move(request));
    while (adapted.engine.step()) {
    }
    return text.logits;
  };
  const Logits first = written(1);
  CHECK(written(1) == first);
  CHECK(written(2) != first);
  adapted.ranks.drop_adapter(1);
  adapted.ranks.add_adapter(3, random_updates(*adapted.model, 1), "a");
  CHECK(written(3) == first);
  auto wrong = random_updates(*adapted.model, 1);
  wrong[0].layer = "model.layers.7.mlp";
  wrong[1].b = wrong[0].a;
  const std::string error =
      testing::input_error([&] { adapted.ranks.add_adapter(4, wrong, "FOLDER"); });
  testing::has(error, "FOLDER: the model does not compute these layers");
  testing::has(error, "model.layers.7.mlp");
  testing::has(error, wrong[1].layer);
  Adapted latents({"latent", latent()}, {.most = 4});
  testing::has(testing::input_error([&] {
                 latents.ranks.add_adapter(3, random_updates(*latents.model, 1), "FOLDER");
               }),
               "kv_b_proj");
  const auto plain = filled(dense());
  text::ModelRanks ranks(*plain);
  text::Engine engine(ranks, vocab);
  Text text{.prompt = prompt, .tokens = 3};
  text::EngineRequest request = text.request();
  request.adapter = 1;
  testing::has(testing::input_error([&] { engine.submit(request); }), "adapter: the model");
}

TEST_CASE("hidden states have the same bits alone and among others") {
  Random random(37);
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    std::vector<Text> texts = random_texts(random, 9);
    const auto states_of = [](text::Engine& engine, const Tokens& prompt, bool all) {
      auto states = std::make_shared<std::vector<double>>();
      engine.submit({.prompt = prompt,
                     .tokens = 0,
                     .states = {.all = all, .take = [states](std::span<const double> own) {
                                  states->insert(states->end(), own.begin(), own.end());
                                }}});
      return states;
    };
    const auto model = filled(kind.shape);
    text::ModelRanks ranks(*model);
    text::Engine engine(ranks, vocab,
                        {.most = 8, .memory = 5 * bytes_of_text(ranks, 90), .prompt_tokens = 11});
    CHECK(ranks.state_features() == kind.shape.dim);
    std::vector<std::shared_ptr<std::vector<double>>> found;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (i % 3 == 2) {
        engine.submit(texts[i].request());
      }
      found.push_back(states_of(engine, texts[i].prompt, i % 2 == 0));
      engine.step();
    }
    while (engine.step()) {
    }
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto own = filled(kind.shape);
      text::ModelRanks own_ranks(*own);
      text::Engine one(own_ranks, vocab, {.most = 1, .prompt_tokens = 1000});
      const auto expected = states_of(one, texts[i].prompt, i % 2 == 0);
      while (one.step()) {
      }
      const std::int64_t tokens = i % 2 == 0 ? std::ssize(texts[i].prompt) : 1;
      CHECK(std::ssize(*found[i]) == tokens * kind.shape.dim);
      CHECK(*found[i] == *expected);
      // The head makes the logits of the next token of them.
      const NoGrad no_grad;
      const Tensor last = from_values(
          std::span<const double>(*expected).last(static_cast<std::size_t>(kind.shape.dim)),
          {1, 1, kind.shape.dim});
      const std::vector<double> logits = to_doubles(own->logits_of(ops::cast(last, DType::f32)));
      const std::vector<double> next = own_ranks.next_logits(texts[i].prompt, 1, true);
      for (std::size_t j = 0; j < next.size(); ++j) {
        REQUIRE(logits[j] == Approx(next[j]).margin(2e-3));
      }
    }
  }
}

TEST_CASE("pages are shared by texts with equal beginnings, and kept until others need them") {
  text::PageTable table(8);
  Tokens tokens(64);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::int64_t>(i);
  }
  text::PageTable::Text first = table.begin(tokens, 64);
  CHECK(first.pages.empty());
  REQUIRE(table.reserve(first, 64));
  CHECK(first.pages == Tokens{0, 1, 2, 3});
  table.know(first, tokens, 40);
  text::PageTable::Text second = table.begin(tokens, 64);
  CHECK(second.pages == Tokens{0, 1});
  table.know(first, tokens, 64);
  text::PageTable::Text third = table.begin(tokens, 64);
  CHECK(third.pages == Tokens{0, 1, 2});  // the last token is to be computed
  text::PageTable::Text of_adapter = table.begin(tokens, 64, 1);
  CHECK(of_adapter.pages.empty());
  table.release(of_adapter);
  CHECK(table.used() == 4);
  table.release(first);
  CHECK(table.used() == 3);
  table.release(second);
  table.release(third);
  CHECK(table.used() == 0);
  // All eight pages can be had; those that hold tokens last.
  text::PageTable::Text other = table.begin(Tokens{9}, 96);
  REQUIRE(table.reserve(other, 6 * 16));
  text::PageTable::Text again = table.begin(tokens, 64);
  CHECK(again.pages == Tokens{0, 1});
  CHECK(!table.reserve(again, 48));
  CHECK(again.pages.size() == 2);
  table.release(other);
  REQUIRE(table.reserve(again, 8 * 16));
  CHECK(table.used() == 8);
}

namespace {

/// By a loop over all places: what followed the longest end of the text, from four tokens to two,
/// that was in it before.
Tokens repeated(const Tokens& text, std::int64_t most) {
  for (std::ptrdiff_t length = 4; length >= 2; --length) {
    for (auto end = std::ssize(text) - 1; end >= length; --end) {
      if (std::equal(text.begin() + end - length, text.begin() + end, text.end() - length)) {
        Tokens guesses(text.begin() + end, text.end());
        while (std::ssize(guesses) < most) {
          guesses.push_back(
              guesses[guesses.size() - static_cast<std::size_t>(std::ssize(text) - end)]);
        }
        guesses.resize(static_cast<std::size_t>(most));
        return guesses;
      }
    }
  }
  return {};
}

/// A text whose tokens are drawn: each by its logits and one random number for each token.
text::EngineRequest drawn(Text& text, std::uint64_t seed) {
  text::EngineRequest request = text.request();
  request.next = [&text, random = Random(seed)](const std::vector<double>& values) mutable {
    text.logits.push_back(values);
    const std::uint64_t number = random();
    // Often the likeliest one, so that guesses are right and wrong.
    std::vector<std::size_t> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, std::ranges::greater(), [&](std::size_t i) { return values[i]; });
    text.written.push_back(static_cast<std::int64_t>(order[number % 4 == 0 ? number / 4 % 3 : 0]));
    return std::optional(text.written.back());
  };
  return request;
}

Text drawn_alone(const nn::DecoderShape& shape, const Text& of, std::uint64_t seed) {
  const auto model = filled(shape);
  text::ModelRanks ranks(*model);
  text::Engine engine(ranks, vocab, {.most = 1, .prompt_tokens = 1000});
  Text text{.prompt = of.prompt, .tokens = of.tokens};
  engine.submit(drawn(text, seed));
  while (engine.step()) {
  }
  return text;
}

}  // namespace

TEST_CASE("guesses are what followed the last tokens before", "[guesses]") {
  Random random(8);
  for (int i = 0; i < 3000; ++i) {
    Tokens text(random() % 14);
    for (std::int64_t& token : text) {
      token = static_cast<std::int64_t>(random() % 3);
    }
    const auto most = static_cast<std::int64_t>(random() % 9);
    CHECK(text::repeated_tokens(text, most) == repeated(text, most));
  }
  const Tokens once = {1, 2, 1, 2};
  CHECK(text::repeated_tokens(once, 5) == Tokens{1, 2, 1, 2, 1});
  const Tokens none = {1, 2, 3, 2};
  CHECK(text::repeated_tokens(none, 5).empty());
}

TEST_CASE("as many tokens are guessed as were right before, and none for a while where none is",
          "[guesses]") {
  text::GuessCount count;
  CHECK(count.next(10) == 4);
  count.learn(4, 4);
  CHECK(count.next(10) == 8);
  CHECK(count.next(3) == 3);
  count.learn(8, 2);
  CHECK(count.next(10) == 3);
  count.learn(3, 0);
  CHECK(count.next(10) == 1);
  count.learn(1, 0);
  std::int64_t pause = 0;
  for (int i = 0; i < 8; ++i) {
    std::int64_t steps = 0;
    while (count.next(10) == 0) {
      ++steps;
    }
    CHECK(steps >= pause);
    CHECK(steps <= 32);
    pause = steps;
    count.learn(1, 0);
  }
  CHECK(pause == 32);
  while (count.next(10) == 0) {
  }
  count.learn(1, 1);
  CHECK(count.next(10) == 2);
}

TEST_CASE("texts with guesses are those without, likeliest or drawn, among many others",
          "[guesses]") {
  Random random(31);
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    const auto model = filled(kind.shape);
    text::ModelRanks ranks(*model);
    const text::EngineOptions options{.most = 64,
                                      .memory = 5 * bytes_of_text(ranks, 120),
                                      .prompt_tokens = 5 + static_cast<std::int64_t>(random() % 40),
                                      .guesses = 7};
    if (ranks.text_bytes().state > 0) {
      CHECK_THROWS_WITH(text::Engine(ranks, vocab, options), Catch::Contains("a state"));
      continue;
    }
    text::Engine engine(ranks, vocab, options);
    std::vector<Text> texts = random_texts(random, 21);
    for (Text& text : texts) {
      text.tokens += 30;
    }
    run_at_random(engine, std::span(texts).first(14), random);
    for (const Text& text : std::span(texts).first(14)) {
      const Text expected = alone(kind.shape, text);
      CHECK(!text.failed);
      if (text.ended) {
        same_bits(text, expected);
      } else {
        CHECK(std::ranges::equal(text.written,
                                 std::span(expected.written).first(text.written.size())));
      }
    }
    for (std::size_t i = 14; i < texts.size(); ++i) {
      engine.submit(drawn(texts[i], i));
      while (i % 2 == 0 && engine.step()) {
      }
    }
    while (engine.step()) {
    }
    for (std::size_t i = 14; i < texts.size(); ++i) {
      same_bits(texts[i], drawn_alone(kind.shape, texts[i], i));
    }
    const text::EngineCounts counts = engine.counts();
    CHECK(counts.right > 0);
    CHECK(counts.guessed > counts.right);
    CHECK(counts.pages == 0);
  }
}

TEST_CASE("a text that repeats itself takes fewer steps", "[guesses]") {
  const auto model = filled(dense());
  text::ModelRanks ranks(*model);
  const std::int64_t tokens = 60;
  std::int64_t steps[2] = {};
  for (const std::int64_t guesses : {0, 15}) {
    text::Engine engine(ranks, vocab, {.guesses = guesses});
    // Whatever the logits are, the text goes on with the next of three tokens.
    std::int64_t next = 0;
    std::int64_t written = 0;
    engine.submit({.prompt = {0, 1, 2, 0, 1, 2},
                   .tokens = tokens,
                   .next = [&](const auto&) -> std::optional<std::int64_t> {
                     ++written;
                     return std::exchange(next, (next + 1) % 3);
                   }});
    while (engine.step()) {
    }
    CHECK(written == tokens);
    steps[guesses > 0 ? 1 : 0] = engine.counts().steps;
    CHECK(engine.counts().written == tokens);
    CHECK(engine.counts().right == engine.counts().guessed);
  }
  CHECK(steps[0] == tokens);
  CHECK(steps[1] <= 8);
}

TEST_CASE("a text ends, fails or is cancelled among its guesses", "[guesses]") {
  const auto model = filled(dense());
  text::ModelRanks ranks(*model);
  for (const std::string how : {"ends", "fails", "is cancelled", "gives another token"}) {
    INFO(how);
    text::Engine engine(ranks, vocab, {.guesses = 8});
    std::int64_t written = 0;
    std::int64_t number = 0;
    std::optional<bool> failed;
    Text beside{.prompt = {5, 6, 7}, .tokens = 20};
    engine.submit(beside.request());
    number = engine.submit({.prompt = {3, 4, 3, 4, 3, 4},
                            .tokens = 40,
                            .next = [&](const auto&) -> std::optional<std::int64_t> {
                              if (++written == 9 && how == "ends") {
                                return std::nullopt;
                              }
                              if (written == 9 && how == "fails") {
                                throw std::runtime_error("no more");
                              }
                              if (written == 9 && how == "is cancelled") {
                                engine.cancel(number);
                              }
                              return written >= 9 && how == "gives another token"
                                         ? 10 + written % 30
                                         : 3 + (written + 1) % 2;
                            },
                            .ended = [&](const auto* error) { failed = error != nullptr; }});
    while (engine.step()) {
    }
    CHECK(written == (how == "gives another token" ? 40 : 9));
    CHECK(failed == (how == "is cancelled" ? std::nullopt : std::optional(how == "fails")));
    CHECK(engine.counts().right > 3);
    CHECK(engine.counts().pages == 0);
    same_bits(beside, alone(dense(), beside));
  }
}

TEST_CASE("guesses take no memory from texts, and no more than a text may have", "[guesses]") {
  const auto model = filled(dense());
  text::ModelRanks ranks(*model);
  const auto ones = [](const auto&) { return std::optional<std::int64_t>(1); };
  // Three pages of 16 tokens: the second text has ended before the first one needs its second page.
  text::Engine several(ranks, vocab, {.memory = bytes_of_text(ranks, 48), .guesses = 15});
  Text second{.prompt = {9, 2, 7, 4, 5, 6, 3, 8, 11, 10, 12, 13, 14, 15}, .tokens = 6};
  several.submit({.prompt = Tokens(6, 1), .tokens = 30, .next = ones});
  several.submit(second.request());
  while (several.step()) {
  }
  CHECK(several.counts().interrupted == 0);
  CHECK(several.counts().written == 36);
  same_bits(second, alone(dense(), second));
  // All pages are those of one text, to its last position.
  text::Engine one(ranks, vocab, {.memory = bytes_of_text(ranks, 64), .guesses = 15});
  one.submit({.prompt = Tokens(6, 1), .tokens = 59, .next = ones});
  while (one.step()) {
  }
  CHECK(one.counts().written == 59);
  CHECK(one.counts().right > 20);
  CHECK(one.counts().interrupted == 0);
}
