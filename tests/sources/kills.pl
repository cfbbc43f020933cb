#!/usr/bin/env perl
# kills.pl PROGRAM SOURCES KILLS: a run that is killed at random times and continued with the same records in another
# form (JSON lines, zstd, Parquet, Arrow's files and streams) and on another number of ranks has the losses of one that
# was never stopped and read JSON lines. Each step's loss depends on the rows of all steps before it.
use strict;
use warnings;
use File::Copy qw(copy);
use File::Temp qw(tempdir);
use POSIX qw(setsid WNOHANG);
use Time::HiRes qw(sleep time);

my ($program, $sources, $kills) = @ARGV;
my $folder = tempdir('tessera-kills-XXXXXX', TMPDIR => 1, CLEANUP => 1);
my $reference = "$sources/tests/reference/data";
$ENV{TESSERA_DATA_CACHE} = "$folder/cache";
mkdir "$folder/tokenizer";
copy("$reference/tokenizers/byte_level.json", "$folder/tokenizer/tokenizer.json") or die;

sub text_of { open my $in, '<', $_[0] or return ''; local $/; return scalar <$in> }
sub write_text { open my $out, '>', $_[0] or die "$_[0]: $!"; print $out $_[1] }

my $template = text_of("$reference/chat/chatml.jinja");
$template =~ s/(["\\])/\\$1/g;
$template =~ s/\n/\\n/g;
write_text("$folder/tokenizer/tokenizer_config.json",
  qq({"eos_token": "<|im_end|>", "bos_token": "<s>", "chat_template": "$template"}\n));
my @forms = ('chats.jsonl', 'chats.jsonl.zst', 'chats.parquet', 'chats.arrow', 'stream/chats.arrow');
mkdir "$folder/stream";
copy("$reference/tables/$_", "$folder/$_") or die for 'chats.jsonl', 'chats.parquet', 'chats.arrow';
copy("$reference/tables/chats_stream.arrow", "$folder/stream/chats.arrow") or die;
system('zstd', '-q', "$folder/chats.jsonl") == 0 or do { print "skipped: there is no zstd\n"; exit 77 };

my $steps = 60;
sub config {
  my ($form, $ranks, $name) = @_;
  return <<"END";
[model]
dim = 16
layers = 1
heads = 2
[data]
jsonl = ["$form"]
tokenizer = "tokenizer"
seq_len = 64
[train]
steps = $steps
batch = 8
[optimizer]
lr = 1e-3
[log]
metrics = "$name.metrics"
[checkpoint]
folder = "$name"
every = 1
keep = 2
[mesh]
axes = ["data"]
shape = [$ranks]
[[parallel]]
style = "Replicate"
axis = "data"
on = ["."]
END
}

my $failures = 0;
sub complain { print "$_[0]\n"; ++$failures }

# Starts a run; returns its process, which leads a session of its own.
sub start {
  my ($form, $ranks, $name) = @_;
  write_text("$folder/$name.toml", config($form, $ranks, $name));
  my $child = fork // die;
  if ($child == 0) {
    setsid();
    open STDOUT, '>', "$folder/$name.out";
    open STDERR, '>&', \*STDOUT;
    exec $program, 'train', "$folder/$name.toml";
    die;
  }
  return $child;
}

sub losses {
  my %loss;
  for (split /\n/, text_of("$folder/$_[0].metrics")) {
    $loss{$1} = $2 if /"step": ?(\d+).*?"loss": ?([0-9.e+-]+)/ || (/"loss": ?([0-9.e+-]+).*?"step": ?(\d+)/ && (($loss{$2} = $1), 0));
  }
  return \%loss;
}

sub expect_equal {
  my ($name, $expected) = @_;
  my $own = losses($name);
  for my $step (1 .. $steps) {
    my $loss = $own->{$step};
    return complain("$name: step $step has no loss") unless defined $loss;
    complain("$name: step $step has the loss $loss, expected $expected->{$step}") if abs($loss - $expected->{$step}) > 2e-5;
  }
}

waitpid(start('chats.jsonl', 1, 'whole'), 0);
die text_of("$folder/whole.out") if $?;
my $expected = losses('whole');
die 'no losses' unless keys %$expected == $steps;

srand(5);
my ($done, $runs, %used) = (0, 0);
my $length = 0.5;  # seconds that a run may take before it is killed
while ($done < $kills) {
  my $name = 'run' . ++$runs;
  for (my $starts = 0;; ++$starts) {
    my ($form, $ranks) = ($forms[int rand @forms], 1 + int rand 2);
    ++$used{"$form on $ranks"};
    my $begin = time;
    my $child = start($form, $ranks, $name);
    my $end = $begin + rand($length);
    my $ended = 0;
    while (!($ended = waitpid($child, WNOHANG)) && (time < $end || $done >= $kills)) { sleep 0.005 }
    if ($ended) {
      if ($? != 0) { complain("$name: " . text_of("$folder/$name.out")); last }
      $length = (time - $begin) * 1.2;
      last;
    }
    kill 'KILL', -$child;
    waitpid $child, 0;
    ++$done;
    # Where runs come nowhere before they are killed, they get more time.
    $length *= 1.3 if $starts % 20 == 19;
  }
  expect_equal($name, $expected);
  last if $failures > 5;
}
printf "%d kills of %d runs, %d failures\n", $done, $runs, $failures;
print "  $_: $used{$_} starts\n" for sort keys %used;
exit($failures > 0);
