/** Who is signed in, what this phone promises to keep, and installing the app. Also the screen of those who are not signed in. */
import type { JournalHealth } from 'billonce'
import { requestPersistence } from 'billonce/stores/indexeddb'
import { signIn, signOut } from './account.ts'
import { accounts } from './accounts.ts'
import type { Account } from './accounts.ts'
import { byId, element, setText } from './dom.ts'
import { tellOthers } from './phone-store.ts'
import type { Snapshot } from './session.ts'
import { storageText } from './words.ts'

/** Chromium's, not in TypeScript's library. */
interface InstallPrompt extends Event {
  prompt(): Promise<unknown>
}

export interface AccountSheet {
  show(snapshot: Snapshot | undefined): void
  /** Asks the browser to keep what is not sent yet, once for each opening of the app, and only where it has not said yes. */
  askToKeep(): Promise<void>
}

/** @param onChange somebody has signed in or out, or the browser has answered */
export function setUpAccountSheet(onChange: () => Promise<void>): AccountSheet {
  const sheet = byId('account-sheet', HTMLDialogElement)
  const opener = byId('open-account', HTMLButtonElement)
  const install = byId('install', HTMLButtonElement)
  const installed = byId('installed', HTMLElement)
  const keep = [...document.querySelectorAll<HTMLButtonElement>('.ask-to-keep')]
  let prompt: InstallPrompt | undefined
  let isAsked = false
  let answer: JournalHealth['persistence'] | undefined

  byId('people', HTMLElement).append(
    ...accounts.map((account) => {
      const button = element(
        'button',
        { type: 'button', class: 'person' },
        element('span', { class: 'avatar', 'aria-hidden': 'true' }, initialsOf(account)),
        element('span', { class: 'name' }, account.name),
        element('span', { class: 'what' }, account.round),
      )
      button.addEventListener('click', () => void change(() => signIn(account)))
      return element('li', {}, button)
    }),
  )
  opener.addEventListener('click', () => sheet.showModal())
  byId('sign-out', HTMLButtonElement).addEventListener('click', () => {
    sheet.close()
    void change(signOut)
  })
  const change = async (how: () => Promise<void>): Promise<void> => {
    await how()
    tellOthers()
    await onChange()
    // What was pressed is not there any more, and a keyboard would be left nowhere.
    byId('main', HTMLElement).focus({ preventScroll: true })
  }

  const showInstall = (): void => {
    const isInstalled = matchMedia('(display-mode: standalone)').matches
    install.hidden = isInstalled || !prompt
    setText(
      installed,
      isInstalled
        ? 'Installed on this phone.'
        : prompt
          ? 'As an app it opens from the home screen, also without a network.'
          : 'To install it, choose "Add to home screen" or "Install" in the browser’s menu.',
    )
  }
  addEventListener('beforeinstallprompt', (event) => {
    event.preventDefault()
    prompt = event as InstallPrompt
    showInstall()
  })
  addEventListener('appinstalled', () => {
    prompt = undefined
    showInstall()
  })
  install.addEventListener('click', () => void prompt?.prompt())
  showInstall()

  const ask = async (): Promise<void> => {
    isAsked = true
    // Firefox asks the user, and this waits for the answer.
    answer = await requestPersistence()
    await onChange()
  }
  for (const button of keep) button.addEventListener('click', () => void ask())

  return {
    async askToKeep() {
      if (!isAsked && answer !== 'persistent') await ask()
    },
    show(snapshot) {
      opener.hidden = snapshot === undefined
      if (!snapshot) return
      const { account, health } = snapshot
      setText(byId('initials', HTMLElement), initialsOf(account))
      setText(byId('account-initials', HTMLElement), initialsOf(account))
      setText(byId('whose', HTMLElement), `, account of ${account.name}`)
      setText(byId('account-name', HTMLElement), account.name)
      setText(byId('account-round', HTMLElement), account.round)
      answer = health.persistence
      const words = storageText(answer)
      for (const id of ['storage-text', 'account-storage']) setText(byId(id, HTMLElement), words)
      byId('storage', HTMLElement).hidden = snapshot.visits.length === 0
      byId('storage', HTMLElement).dataset['tone'] = answer === 'persistent' ? 'good' : 'wait'
      for (const button of keep) button.hidden = answer !== 'not-granted'
      const waiting = health.status === 'readable' ? health.open.pending + health.open.sending : 0
      setText(
        byId('leaving', HTMLElement),
        waiting === 0
          ? 'Everything of yours is with the office.'
          : `${waiting} of yours ${waiting === 1 ? 'waits' : 'wait'} on this phone and will only be sent with your login. After signing out ${waiting === 1 ? 'it stays' : 'they stay'} here until you are back.`,
      )
    },
  }
}

function initialsOf({ name }: Account): string {
  return name
    .split(' ')
    .map((part) => part.charAt(0))
    .join('')
}
