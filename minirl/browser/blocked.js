// Asked of the page that an episode has ended on: what shows that it keeps visitors out, or ''. Such a page
// is told by its status; by its title, or what it says, if it says little else and has nothing to fill in or
// to follow; or by a CAPTCHA that stands there alone. docs/live_sites.md has the error rates.
const REFUSALS = [403, 429], MOST_LINKS = 25;
const REFUSAL_CHARS = 4000, CHALLENGE_CHARS = 1500, CAPTCHA_CHARS = 400;  // the longest texts of such pages
const TITLES = [
  /just a moment(\.{3}|…)?/, /attention required!?.*/, /access (to this page has been )?denied/,
  /pardon our interruption(\.{3}|…)?/, /(are you a )?robot( or human| check)?\?/, /ddos-guard/,
  /(robot|bot|browser|human|captcha) (check|verification)/, /(\w+ )?security (check|checkpoint|challenge)/,
  /(error )?(403|429)(\W.*)?/, /too many requests|rate limit(ed| exceeded)/, /(you (have been|are) )?blocked/,
  /request rejected/,
];
const WORDS = [
  /\b(verify(ing)?|confirm|prove|make sure|check(ing)?) (that )?you(['’]re| are) (a )?(human|not a (ro)?bot)/,
  /\bverify(ing)? your browser\b/, /\byour browser made us think you (were|are) a (ro)?bot\b/,
  /\bchecking (if the site connection is secure|your browser before)\b/,
  /\benable javascript and cookies to continue\b/, /\bpress (&|and) hold (the button )?to confirm\b/,
  /\bunusual (traffic|activity) from your (computer|device|network|ip)\b/,
  /\bour systems have detected (unusual|automated|suspicious)\b/, /\byou are being rate limited\b/,
  /\b(you have|you['’]ve|your (ip|ip address|access) has) been (temporarily )?(blocked|banned|rate limited)/,
  /\bcomplete the (security check|captcha|challenge) (below|to)\b/, /\bincapsula incident id\b/,
  /\byou don['’]t have permission to access .{1,200} on this server\b/, /\bthe requested url was rejected\b/,
];
const CAPTCHAS = 'iframe[src*="captcha"], iframe[src*="challenges.cloudflare.com"], [id^="challenge-"], ' +
  'iframe[src*="_Incapsula_Resource"], .g-recaptcha, .h-captcha, .cf-turnstile, [id*="captcha"]';

function blocked() {
  const shown = e => e.getClientRects().length > 0 && e.checkVisibility({visibilityProperty: true});
  const names = e => [e.id, e.name, e.placeholder, e.className].join(' ');
  const inputs = [...document.querySelectorAll('input, textarea, select')].filter(e => shown(e) &&
    (e.tagName !== 'INPUT' || TYPED.test(e.type)) && !/captcha|challenge|characters/i.test(names(e)));
  const text = document.body ? document.body.innerText.trim() : '';
  const [navigation] = performance.getEntriesByType('navigation');
  const status = navigation ? navigation.responseStatus : 0;
  if (REFUSALS.includes(status) && text.length <= REFUSAL_CHARS && !inputs.some(e => e.type === 'password'))
    return 'it answered ' + status;
  if (inputs.length || text.length > CHALLENGE_CHARS || [...document.links].filter(shown).length > MOST_LINKS)
    return '';
  const title = short(document.title, 200).toLowerCase(), words = short(text, CHALLENGE_CHARS).toLowerCase();
  const named = TITLES.map(sign => title.match(sign)).find(found => found && found[0] === title);
  const said = named || WORDS.map(sign => words.match(sign)).find(found => found);
  if (said) return 'it says "' + short(said[0], 80) + '"';
  return document.querySelector(CAPTCHAS) && text.length <= CAPTCHA_CHARS ? 'it shows a CAPTCHA alone' : '';
}
