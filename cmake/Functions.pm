package Functions;
# The functions that a C++ source defines. It reads braces, not C++: a source that clang-format has formatted is enough.
use strict;
use warnings;
use Exporter qw(import);
our @EXPORT_OK = qw(functions_in);

# The text with a space for each character of a comment, a string or a line of the preprocessor.
sub code_of {
  my ($text) = @_;
  my $comment = qr{//[^\n]*|/\*.*?\*/}s;
  my $string = qr{R"(\w*)\(.*?\)\g{-1}"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'}s;
  my $directive = qr{^\#(?:[^\n]*\\\n)*[^\n]*}m;
  $text =~ s{($comment|$string|$directive)}{$1 =~ s/[^\n]/ /gr}ge;
  return $text;
}

# The name that a function's head declares: what stands before its first "(".
sub declared_name {
  my ($head) = @_;
  my $angles = qr{<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>};
  $head =~ s/\[\[.*?\]\]//g;
  $head =~ s/^ ?template ?$angles ?//;
  return $1 =~ s/ //gr if $head =~ /(operator ?(?:\(\)|\S+?)|~?\w+(?:::~?\w+|<[^<>]*>::\w+)*(?:::operator ?\S+?)?) ?\(/;
  return $head =~ /(\w+)(?:\[[^\]]*\])* ?=? ?$/ ? $1 : '';
}

# Whether the brace after `head` begins a value within a declaration: of a variable, an argument or a member.
sub is_value {
  my ($head) = @_;
  return $head =~ /(?<!operator)= ?$/ || ($head =~ tr/(//) > ($head =~ tr/)//) || $head =~ /\) ?(?:noexcept )?: .*[\w>]$/;
}

# [name, first offset, offset behind it, body] of each function that the text defines, and of each variable at the level of
# a namespace or class that has a value. A name has the classes around it: "Engine::publish". Of a function, `body` is the name
# as it is declared there ("Engine::publish" outside of its class, "publish" within it); of a variable it is undefined.
sub functions_in {
  my ($text) = @_;
  my $code = code_of($text);
  my (@scopes, @found);
  my ($begin, $inside, $values, $function) = (0, 0, 0, undef);
  my $found = sub {
    my ($name, $from, $to, $declared) = @_;
    push @found, [join('::', grep({ length } @scopes), $name), $from, $to, $declared];
  };
  while ($code =~ /([{};])/g) {
    my ($sign, $at) = ($1, pos($code) - 1);
    if ($inside || $values) {
      my $change = $sign eq '{' ? 1 : $sign eq '}' ? -1 : 0;
      if ($values) {
        $values += $change;
      } elsif (!($inside += $change)) {
        $found->(@$function, $at + 1, $function->[0]);
        $begin = $at + 1;
      }
      next;
    }
    my $head = substr $code, $begin, $at - $begin;
    my $first = $begin + length(($head =~ /^(\s*)/)[0]);
    $head =~ s/\s+/ /g;
    $head =~ s/^ ?(?:(?:public|private|protected) ?: ?)+//;
    if ($sign eq '{' && $head =~ /^ ?(?:export )?(?:inline )?namespace\b|^ ?(?:export|extern) *$/) {
      push @scopes, '';
    } elsif ($sign eq '{' && $head !~ /\) ?(?:const ?)?$/ && $head =~ /^ ?(?:export )?(?:template ?<.*> ?)?(?:class|struct|union|enum(?: class)?)\b(?: \w+\(\w*\))? ?([\w:]*)/) {
      push @scopes, $1;
    } elsif ($sign eq '{' && is_value($head)) {
      $values = 1;
      next;
    } elsif ($sign eq '{') {
      ($function, $inside) = ([declared_name($head), $first], 1);
      next;
    } elsif ($sign eq '}') {
      pop @scopes;
    } elsif ($head =~ /(\w+)(?:\[[^\]]*\])* ?=/) {
      $found->($1, $first, $at + 1);
    }
    $begin = $at + 1;
  }
  return @found;
}

1;
