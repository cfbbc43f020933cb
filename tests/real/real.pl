#!/usr/bin/env perl
# Uses a real model as a user does: runs the commands of docs/fine-tuning.md, and compares what the program reads and
# computes with results of Hugging Face's libraries (tests/reference/real_model.py).
#
#   real.pl REPOSITORY PROGRAM
#
# The model's file is fetched once, by the page's own command, and kept in ~/.cache/tessera/models. Without the file and
# without a network the exit code is 77: skipped. Needs 4 GB in the folder of temporary files, 3 GB of memory.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Path qw(make_path remove_tree);
use File::Temp qw(tempdir);
use JSON::PP;
use FindBin;
use lib "$FindBin::RealBin/../support";
use Files qw(text_of write_file);

die "usage: real.pl REPOSITORY PROGRAM\n" unless @ARGV == 2;
my ($repository, $program) = map { abs_path($_) // die "$_: no such file\n" } @ARGV;
my $page = "$repository/docs/fine-tuning.md";
my $expected;  # the stored results
my $cache = ($ENV{XDG_CACHE_HOME} // "$ENV{HOME}/.cache") . '/tessera/models';
my $scratch = tempdir(CLEANUP => 1);
my $failures = 0;

sub lines_of_json { return join '', map { encode_json($_) . "\n" } @_; }

sub check {
  my ($ok, $what) = @_;
  printf "%s%3d:%02d  %s\n", $ok ? 'ok      ' : 'FAILED  ', int((time - $^T) / 60), (time - $^T) % 60, $what;
  ++$failures unless $ok;
}

sub near {
  my ($got, $want, $tolerance, $what) = @_;
  check(abs($got - $want) <= $tolerance, sprintf '%s: %.7g, expected %.7g within %g', $what, $got, $want, $tolerance);
}

# What a command prints. One that fails ends the test.
sub output_of {
  my ($command) = @_;
  my $text = qx{exec 2>'$scratch/errors'; $command};
  die "$command\nfailed and printed\n$text" . text_of("$scratch/errors") if $? != 0;
  return $text;
}

sub evaluated {  # MODEL OPTIONS: the results' members, in order
  my ($model, $options) = @_;
  return @{decode_json(output_of("tessera evaluate '$model' $options --json"))->{results}};
}

sub answers_of {  # MODEL QUESTION...: each in a conversation of its own
  my ($model, @questions) = @_;
  write_file('questions.txt', join "\n/reset\n", @questions);
  my $text = output_of("tessera chat '$model' --temperature 0 --tokens $expected->{answer_tokens} <questions.txt");
  $text =~ s/\n+\z//;
  return $text;
}

# Stand-ins of ./dev, which does not build again, and of curl, which fetches each file only once.
sub make_stand_ins {
  my ($hash) = text_of($page) =~ /"([0-9a-f]{64})  /;
  make_path("$scratch/bin", "$scratch/user", $cache);
  symlink $program, "$scratch/bin/tessera" or die "tessera: $!\n";
  write_file("$scratch/user/dev", <<'END');
#!/bin/bash
command=$1
shift
case $command in
  run) exec tessera "$@" ;;
  cmake) exec cmake "$@" ;;
  *) echo "./dev $command is not run by this test" >&2; exit 1 ;;
esac
END
  write_file("$scratch/bin/curl", <<"END");
#!/bin/bash
# curl -fsSLo FILE ADDRESS
set -euo pipefail
kept='$cache'/\${3##*/}
good() { [[ -e \$1 ]] && echo '$hash' "\$1" | sha256sum --check --status; }
if ! good "\$kept"; then
  PATH=\${PATH#*:} curl "\$1" "\$kept.\$\$" "\$3" || { rm -f "\$kept.\$\$"; touch '$scratch/unreachable'; exit 1; }
  mv "\$kept.\$\$" "\$kept"
fi
cp "\$kept" "\$2"
END
  chmod 0755, "$scratch/user/dev", "$scratch/bin/curl";
  $ENV{PATH} = "$scratch/bin:$ENV{PATH}";
  $ENV{XDG_DATA_HOME} = "$scratch/share";  # no plugin of the user's own
}

# Runs the page's blocks that say that this test runs them, each with its check.
sub run_page {
  my ($ran, $where, $block) = (0);
  for my $line (split /^/, text_of($page)) {
    if (defined $block) {
      if ($line !~ /^```/) { $block .= $line; next; }
      write_file("$scratch/script", "set -euo pipefail\n$block");
      my $status = system("bash '$scratch/script' >'$scratch/printed' 2>&1 </dev/null");
      if ($status != 0 && -e "$scratch/unreachable") {
        print "skipped: the model's file cannot be fetched:\n" . text_of("$scratch/printed");
        exit 77;
      }
      die "the page's command\n${block}failed and printed\n" . text_of("$scratch/printed") if $status != 0;
      check(1, 'the page: ' . (split /\n/, $block)[-1] =~ s/^\s+//r);
      ($block, $where) = (undef, undef);
      ++$ran;
    } elsif ($line =~ m{^<!-- not run: \./dev test real runs it -->}) {
      $where = 1;
    } elsif ($line =~ /^```sh/ && $where) {
      $block = '';
    } elsif ($line =~ /^<!-- check: (.*) -->$/) {
      local $ENV{PRINTED} = "$scratch/printed";
      check(system('bash', '-c', $1) == 0, "the page's check: $1");
    }
  }
  check($ran == 6, "$ran of the page's commands ran, expected 6");
}

# `tessera data show` prints the ids of one row that holds all texts, each with the token that ends it.
sub check_tokens {
  my ($model) = @_;
  my @texts = @{$expected->{texts}};
  my @want = map { (@{$_->{ids}}, $expected->{end}) } @texts;
  write_file('texts.jsonl', lines_of_json(map { {text => $_->{text}} } @texts));
  write_file('texts.toml', qq{[model]\nfrom = "$model"\n[data]\njsonl = ["texts.jsonl"]\nvalidation = 0\norder = "sequential"\n}
    . 'seq_len = ' . (@want - 1) . "\n[train]\nsteps = 1\nbatch = 1\n");
  my ($row) = output_of('tessera data show texts.toml --rows 1') =~ /tokens, \d+ trained\n(.*)/;
  my @got = map { /\|(\d+)\}?$/ ? $1 : die "data show: '$_' has no id\n" } split ' ', $row;
  my $first = 0;
  ++$first while $first < @want && $first < @got && $want[$first] == $got[$first];
  check("@got" eq "@want", scalar(@want) . ' ids of ' . scalar(@texts) . ' texts are those of tokenizers'
    . ("@got" eq "@want" ? '' : "; the one at $first is " . ($got[$first] // 'missing') . ", expected " . ($want[$first] // 'none')));
}

sub check_before {
  my ($model) = @_;
  my ($text, $records) = evaluated($model, '--text text.txt --jsonl conversations.jsonl');
  check($text->{tokens} == $expected->{text_tokens} - 1, "$text->{tokens} tokens of the text are scored");
  near($text->{loss}, $expected->{text_loss}, 2e-5, "loss of a text beside transformers'");
  check($records->{tokens} == $expected->{conversations_tokens}, "$records->{tokens} tokens of answers are scored");
  near($records->{loss}, $expected->{conversations_loss}, 2e-5, "loss of answers beside transformers'");
  my @asked = @{$expected->{answers}};
  my $got = answers_of($model, map { $_->{question} } @asked);
  my $want = join "\n", map { $_->{answer} } @asked;
  utf8::encode($want);
  check($got eq $want, "chat answers as transformers does" . ($got eq $want ? '' : "; it says\n$got\nexpected\n$want"));
}

# A checkpoint of the page's model goes out as GGUF, and comes in again.
sub check_gguf {
  my ($tuned, $loss, $dtype, $tolerance) = @_;
  my @asked = ('What is the capital of Norway?', 'What is the capital of Nepal?', 'Name three colors.');
  my $folder = "out-$dtype";
  output_of("tessera checkpoint export $tuned --to $folder --format gguf --dtype $dtype");
  my $back = "$folder/model.gguf";
  my ($held_out) = evaluated($back, '--jsonl held-out.jsonl');
  near($held_out->{loss}, $loss, $tolerance, "loss after GGUF in $dtype");
  if ($dtype ne 'q8_0') {
    my ($before, $after) = (answers_of($tuned, @asked), answers_of($back, @asked));
    check($before eq $after, "answers after GGUF in $dtype" . ($before eq $after ? '' : ":\n$after\nbefore:\n$before"));
  }
  remove_tree($folder);
}

make_stand_ins();
chdir "$scratch/user" or die "$scratch/user: $!\n";
END { chdir '/'; }
run_page();
$expected = decode_json(text_of("$repository/tests/reference/data/real_model/smollm2.json"));
my ($file) = text_of('pirate.toml') =~ /from = "(.*)"/;
check(output_of("sha256sum $file") =~ /^$expected->{file}{sha256} /, 'the file is the one of the stored results');
check_tokens($file);

my $text = $expected->{text};
utf8::encode($text);
write_file('text.txt', $text);
write_file('conversations.jsonl', lines_of_json(@{$expected->{conversations}}));
check_before($file);

my $tuned = 'pirate/step-00000030';
my ($held_out_before) = evaluated($file, '--jsonl held-out.jsonl');
my ($held_out) = evaluated($tuned, '--jsonl held-out.jsonl');
check($held_out->{loss} < $held_out_before->{loss} / 2,
  sprintf 'loss of the held-out answers: %.4f before, %.4f after', $held_out_before->{loss}, $held_out->{loss});
my $last = decode_json((split /\n/, text_of('pirate.jsonl'))[-1]);
near($held_out->{loss}, $last->{validation_loss}, 1e-4, "loss of evaluate beside the run's own validation");
check_gguf($tuned, $held_out->{loss}, 'float32', 1e-5);
check_gguf($tuned, $held_out->{loss}, 'float16', 1e-2);
check_gguf($tuned, $held_out->{loss}, 'q8_0', 0.05);
print $failures ? "$failures checks failed\n" : "all checks passed\n";
exit($failures ? 1 : 0);
