// Parsers of data files: chat templates, records, headers of token files.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "target.hpp"

import tessera.base;
import tessera.tokenize;
import tessera.data;

using namespace tessera;

namespace {

const char* const conversation = R"({"messages": [{"role": "system", "content": "Be kind."},
  {"role": "user", "content": "Hi \u00e9"}, {"role": "assistant", "content": "Hello", "tool_calls": [{"type": "function",
  "id": "a1", "function": {"name": "add", "arguments": {"a": 1, "b": [2.5, null, true]}}}]},
  {"role": "tool", "name": "add", "tool_call_id": "a1", "content": "3"}, {"role": "assistant", "content": "Three."}],
  "tools": [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object",
  "properties": {"a": {"type": "integer"}}}}}]})";

const char* const plain_conversation =
    R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]})";

const fuzz::Target chat_template{
    "chat_template",
    [](std::string_view input) {
      const data::ChatTemplate chat(
          input, "template", R"({"bos_token": "<s>", "eos_token": "</s>", "thinking": true})");
      try {
        static_cast<void>(chat.render(conversation, true));
        static_cast<void>(chat.render_with_answers(conversation));
      } catch (const Error& error) {  // some templates take only simple ones
        if (error.kind() != ErrorKind::input) {
          throw;
        }
      }
      static_cast<void>(chat.render_with_answers(plain_conversation));
    },
    {"tests/reference/data/chat/brackets.jinja", "tests/reference/data/chat/chatml.jinja",
     "tests/reference/data/chat/headers.jinja", "tests/reference/data/chat/marked.jinja",
     "tests/reference/data/chat/thinking.jinja", "tests/reference/data/chat/turns.jinja"}};

const fuzz::Target records{
    "records", [](std::string_view input) {
      static const auto chat = std::make_shared<const data::ChatTemplate>(
          "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ "
          "m.content }}.{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
          "template");
      static const data::ExampleMaker maker(
          [] {
            tokenize::OpenedTokenizer opened;
            opened.tokenizer = tokenize::make_tokenizer("bytes");
            opened.special.stop = {'.'};
            return opened;
          }(),
          chat, data::TrainOn::answers);
      const data::RecordKind kind = data::ExampleMaker::kind_of(input);
      if (kind == data::RecordKind::preference) {
        const data::Preference two = maker.make_preference(input);
        fuzz::expect(two.chosen.ids.size() == two.chosen.trained.size(),
                     "records: a token is neither trained nor not");
      } else {
        const data::Example one = maker.make(input);
        fuzz::expect(one.ids.size() == one.trained.size(),
                     "records: a token is neither trained nor not");
      }
    }};

const fuzz::Target npy{
    "npy", [](std::string_view input) {
      const auto bytes = std::as_bytes(std::span(input));
      const data::NpyLayout layout = data::read_npy_header(
          bytes.first(std::min(bytes.size(), data::npy_header_limit)), bytes.size(), "file.npy");
      fuzz::expect(layout.count >= 0 && layout.offset + static_cast<std::size_t>(layout.count) *
                                                            size_of(layout.type) ==
                                            bytes.size(),
                   "npy: the tokens are not the rest of the file");
    }};

const fuzz::Target image{
    "image",
    [](std::string_view input) {
      const data::Image found = data::decode_image(std::as_bytes(std::span(input)), "image");
      fuzz::expect(found.pixels.size() == static_cast<std::size_t>(found.height * found.width * 3),
                   "image: its pixels are not those of its size");
      const data::Image small = data::resized(found, 3, 5, data::ImageFilter::bicubic);
      fuzz::expect(small.pixels.size() == 45, "image: its pixels are not those of its new size");
    },
    {"tests/reference/data/image_classification/images/00.jpg",
     "tests/reference/data/image_classification/images/01.png",
     "tests/reference/data/image_classification/images/02.png",
     "tests/reference/data/image_classification/images/03.jpg",
     "tests/reference/data/image_classification/images/04.png"}};

}  // namespace
