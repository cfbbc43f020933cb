// The pre-tokenizers of tokenizer.json: they divide a text into words.
#pragma once
#include <memory>
#include <string>
#include <tessera/json.hpp>
#include <vector>

#include "regex.hpp"
#include "text.hpp"

namespace tessera::tokenize {

/// Space that one thread reuses from call to call.
struct SplitSpace {
  std::vector<Piece> pieces;
  std::vector<Match> parts;
};

/// One step. It divides each piece, drops what a word does not contain, and may change the text.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Throws TextSizeError.
  virtual void apply(Text& text, std::vector<Piece>& pieces, SplitSpace& space) const = 0;
  std::string where;  // it is in the file
  /// Whether it must know which bytes of the input a piece stands for.
  virtual bool needs_sources() const { return false; }
};

struct PreTokenizers {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  /// The last step is ByteLevel: the words are bytes, and the model's tokens stand for bytes in
  /// GPT-2's alphabet. The words are left as they are.
  bool words_are_bytes = false;
};

/// The steps that a file's "pre_tokenizer" describes, in their order (Sequences are resolved).
/// `model_takes_bytes`: words_are_bytes is allowed. Error (input) that begins with `where`: one of
/// them is not supported.
PreTokenizers read_pre_tokenizers(const nlohmann::json& json, const std::string& where,
                                  bool model_takes_bytes);

/// Divides at every match, which is a word too: what tiktoken does.
std::unique_ptr<PreTokenizer> split_isolated(Regex regex);

}  // namespace tessera::tokenize
