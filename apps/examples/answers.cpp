// answers: a trained model (a folder of transformers, a GGUF file or a checkpoint) continues the
// texts of the command line, all in one batch. docs/whole-runs.md explains it.
//
//   answers MODEL TEXT...
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

import tessera;

using namespace tessera;

int main(int count, char** words) {
  if (count < 3) {
    std::fprintf(stderr, "answers MODEL TEXT...\n");
    return 2;
  }
  try {
    const text::TextModel model({words[1]});
    std::vector<std::vector<std::int64_t>> prompts;
    for (int i = 2; i < count; ++i) {
      prompts.push_back(text::prompt_tokens(model, words[i]));
    }
    text::Engine engine(model.ranks(), model.shape().vocab);
    const text::GenerationOptions options{.tokens = 24, .sampling = {.temperature = 0}};
    const auto answers = text::generate(model, engine, prompts, options);
    for (std::size_t i = 0; i < answers.size(); ++i) {
      std::printf("%s|%s\n", words[i + 2], answers[i].text.c_str());
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
  return 0;
}
