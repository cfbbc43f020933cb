module tessera.grammar:json_texts;

import tessera.base;
import :expression;
import :readers;

// The texts of JSON values.

namespace tessera::grammar {

/// A member of an object.
struct JsonMember {
  std::string name;
  Expression value;
  bool required = true;
};

/// Makes expressions for values, with the rules that they share. Between parts, there is at most a
/// blank, or one or two line ends with an indent.
class JsonTexts {
 public:
  /// The grammar must outlive it.
  explicit JsonTexts(Grammar& grammar, JsonNotation notation = {})
      : grammar_(grammar), notation_(std::move(notation)) {}

  /// Any value, any object.
  Expression any_value();
  Expression any_object();
  /// Texts of so many characters; -1: of any number. Where texts are between marks, `string()`
  /// alone is right.
  Expression string(std::int64_t least = 0, std::int64_t most = -1);
  /// This text.
  Expression text(const std::string& text) const;
  /// Lists that begin with some of `first`; `others` follow all of them.
  Expression list(std::vector<Expression> first, Expression others, std::int64_t least,
                  std::int64_t most);
  /// Objects with members in this order, and after them any number of others with other names.
  Expression object(const std::vector<JsonMember>& members, Expression others);

 private:
  Expression shared(Expression expression) { return rule(grammar_.add(std::move(expression))); }
  Expression blank();
  Expression after_comma(Expression part);
  Expression member(const Expression& name, Expression value);
  /// The name of any member.
  Expression name();

  Grammar& grammar_;
  JsonNotation notation_;
  std::optional<std::size_t> blank_;
  std::optional<std::size_t> character_;
  std::optional<std::size_t> value_;
  std::optional<std::size_t> object_;
};

/// Whether a member can have that name where names are written without quotes.
bool is_bare_name(std::string_view name);

/// The regular expression of a format of texts; empty: it is not known.
std::string pattern_of_format(std::string_view format);

}  // namespace tessera::grammar
