// Offers a text to a code editor as the clipboard would, and answers if it was taken: as it is, without indenting.
function paste([text]) {
  const data = new DataTransfer();
  data.setData('text/plain', text);
  const event = new ClipboardEvent('paste', {clipboardData: data, bubbles: true, cancelable: true});
  return !focused().dispatchEvent(event);
}
